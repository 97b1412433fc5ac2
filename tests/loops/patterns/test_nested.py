"""Comment resolution around a CI watch: the outer loop calls the inner one (S3-7, S3-8, S3-G3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from loops.core.contract import (
    ActionDecision,
    AuthorityScope,
    Escalation,
    Evaluation,
    Judgment,
    LoopContext,
    LoopContract,
    LoopResult,
    Outcome,
    run_loop,
)
from loops.core.limits import LimitReached
from loops.patterns.base import accepted
from loops.patterns.check_fix import Spec
from loops.patterns.nested import CheckFixError, CheckFixOutput, check_and_fix
from tests.loops.patterns.fakes import INFO, World, world

CI = Spec(loop_name="CI watch loop", checks=["ci"], fixes=["mend"])


@dataclass
class Comments:
    """The outer loop: settle one open comment per attempt, with CI green after each round."""

    world: World
    open: list[str]
    budget: int = 5
    seen: list[Any] = field(default_factory=list)

    def act(self, context: LoopContext[tuple[str, ...]]) -> ActionDecision[tuple[str, ...]]:
        left = context.state
        if left:
            self.world.commands.fix("resolve", "resolve")
            left = left[1:]
        try:
            self.seen.append(check_and_fix(CI, self.world.effects, replace(INFO, budget=2)))
        except CheckFixError as error:
            self.seen.append(error)
            stop = Escalation(cause="evaluator", reason=str(error))
            return ActionDecision(action="resolve", escalation=stop)
        return ActionDecision(action="resolve", state=left)

    def judge(self, left: tuple[str, ...]) -> Evaluation:
        self.world.commands.ran.append(("look", "comments"))
        return Evaluation(judgment=Judgment.CONTINUE if left else Judgment.SUCCESS)

    def run(self) -> LoopResult[tuple[str, ...]]:
        return run_loop(
            LoopContract(
                local_aim="every comment is resolved",
                initial_state=tuple(self.open),
                action_policy=self.act,
                evaluator=self.judge,
                budget=self.budget,
                stopping_condition=accepted,
                authority_scope=AuthorityScope(allowed_actions=frozenset({"resolve"})),
            )
        )


def comments(*ci: int, found: Iterable[str] = ("a", "b")) -> Comments:
    return Comments(world({}, {"ci": ci, "mend": [0], "resolve": [0]}), list(found))


def test_s3_07_ci_is_watched_again_after_each_round_before_comments_are_looked_for() -> None:
    outer = comments(0)
    assert outer.run().outcome is Outcome.SUCCESS
    ran = [command for _, command in outer.world.commands.ran]
    assert ran == ["resolve", "ci", "comments"] * 2


def test_s3_07_an_inner_error_stops_the_outer_loop_with_the_inner_message() -> None:
    outer = comments(1)
    result = outer.run()
    assert (result.outcome, result.attempts) == (Outcome.ESCALATED, 1)
    assert result.escalation is not None
    assert result.escalation.reason == "CI watch loop exceeded MAX_CI_WATCH_LOOP_ITERATIONS"


def test_s3_08_callers_can_match_on_named_results() -> None:
    outer = comments(0, 1, 1)
    outer.run()
    match outer.seen:
        case [CheckFixOutput(rounds=1, passed_quota_skipped=False), CheckFixError() as error]:
            assert (error.cause, error.rounds) == ("iterations", 2)
            assert error.red == ("check 1: ci exited with 1",)
        case other:
            raise AssertionError(other)


class CIWatchLoopOutput(CheckFixOutput):
    """CI is green."""


class CIWatchLoopError(CheckFixError):
    """CI stayed red."""


class LintLoopError(CheckFixError):
    """Another loop's."""


def test_s3_08_each_loop_may_have_types_of_its_own() -> None:
    made = world({}, {"ci": [0, 1], "mend": [0]})
    info = replace(INFO, budget=1)
    green = check_and_fix(CI, made.effects, info, output=CIWatchLoopOutput, error=CIWatchLoopError)
    assert green == CIWatchLoopOutput(rounds=1, passed_quota_skipped=False)
    assert green != CheckFixOutput(rounds=1, passed_quota_skipped=False)
    with pytest.raises(CIWatchLoopError) as caught:
        check_and_fix(CI, made.effects, info, error=CIWatchLoopError)
    assert str(caught.value) == "CI watch loop exceeded MAX_CI_WATCH_LOOP_ITERATIONS"
    assert not isinstance(caught.value, LintLoopError)
    with pytest.raises(LintLoopError):
        check_and_fix(CI, made.effects, info, error=LintLoopError)


def test_s3_g3_the_inner_counter_starts_anew_and_the_outer_one_has_its_own() -> None:
    outer = comments(1, 0, 1, 0, 1, 0, found="abc")
    assert outer.run().outcome is Outcome.SUCCESS
    assert [output.rounds for output in outer.seen] == [2, 2, 2]


def test_s3_g3_a_run_wide_ceiling_holds_for_all_calls_together() -> None:
    outer = comments(0, found="abc")
    calls = 4

    def refuse(name: str, command: str) -> Any:
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise LimitReached("tool_calls", used=4, reserved=0, asked=1, cap=4)
        return run(name, command)

    run, outer.world.commands._run = outer.world.commands._run, refuse  # type: ignore[method-assign]
    with pytest.raises(LimitReached):
        outer.run()
    assert len(outer.seen) == 2


def test_s3_12_the_guard_holds_when_every_fix_breaks_ci_in_a_new_way() -> None:
    outer = comments(*range(1, 9))
    outer.run()
    assert [command for _, command in outer.world.commands.ran].count("ci") == 2


def test_s3_10_a_quota_skip_is_told_to_the_caller() -> None:
    outer = comments(1, found="a")
    outer.world.commands.output = '{"fixed": false, "skipped": true, "reason": "quota"}'
    outer.run()
    assert outer.seen == [CheckFixOutput(rounds=1, passed_quota_skipped=True)]
