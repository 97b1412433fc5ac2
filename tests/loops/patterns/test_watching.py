"""Slow and blocking checks, pull requests, and what fixers say of themselves (S3-10, S3-11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from loops.core.contract import LoopResult, Outcome, run_loop
from loops.core.effects import CommandResult
from loops.patterns.check_fix import PATTERN, Spec, State
from loops.patterns.fix_report import FixReport, read_report
from tests.loops.patterns.fakes import INFO, World, world

PR = "https://github.com/acme/till/pull/7"
PENDING = CommandResult(exit_code=75, output="still building")
NO_CHECKS = CommandResult(exit_code=1, output="no checks reported on the 'main' branch")
GREEN = CommandResult(exit_code=0, output="")
RED = CommandResult(
    exit_code=1, output="build\tfail\t2m\thttps://ci/acme/till/actions/runs/91/job/3"
)


def watched(
    results: Sequence[CommandResult], check: str = "ci", budget: int = 5, **spec: Any
) -> tuple[LoopResult[State], World, list[float]]:
    """The loop over a check that gives these results; fixes change nothing."""
    made, waits, left = world(), list[float](), list(results)

    def run(name: str, command: str) -> CommandResult:
        made.commands.ran.append((name, command))
        if name.startswith("fix"):
            return GREEN
        return left.pop(0)

    made.commands._run = run  # type: ignore[method-assign]
    made.commands.idle_fixes = frozenset({"fix"})
    given = Spec.model_validate({"checks": [check], "fixes": ["fix"]} | spec)
    contract = PATTERN.build(given, State(), made.effects, replace(INFO, budget=budget))
    return run_loop(contract, sleep=waits.append), made, waits


def test_rc053_pending_looks_are_no_iterations_and_no_repetitions() -> None:
    result, made, waits = watched([PENDING] * 12 + [GREEN], max_polls=20)
    assert (result.outcome, result.attempts) == (Outcome.SUCCESS, 1)
    assert len(made.commands.ran) == 13
    assert waits == [30.0] * 12


def test_looks_are_bounded() -> None:
    result, made, _ = watched([PENDING] * 9, max_polls=3)
    assert result.escalation is not None
    assert result.escalation.cause == "polls"
    assert result.escalation.reason == "Not ready after 3 looks: check 1 (ci)."
    assert (len(made.commands.ran), result.evaluations) == (3, ())


def test_one_look_is_one_look() -> None:
    result, made, waits = watched([PENDING] * 2, max_polls=1)
    assert result.escalation is not None
    assert result.escalation.reason == "Not ready after 1 look: check 1 (ci)."
    assert (len(made.commands.ran), waits) == (1, [])


@pytest.mark.parametrize("check", [f"gh:{PR}", f"gh-poll:{PR}"])
def test_a_gh_that_is_not_logged_in_stops_before_any_fix(check: str) -> None:
    result, made, _ = watched([CommandResult(exit_code=4, output="gh auth login")], check)
    assert result.escalation is not None
    assert (result.escalation.cause, len(made.commands.ran)) == ("command_not_found", 1)
    assert "check 1: gh is not logged in where commands run: log it in" in result.escalation.reason


def test_why_a_fixer_changed_nothing_is_said() -> None:
    tired = '{"fixed": false, "skipped": false, "reason": "tired"}'
    made = world({"fixer": [tired, "no"]}, {"a": [1], "b": [1]})
    result = run_loop(PATTERN.build(Spec(checks=["a", "b"]), State(), made.effects, INFO))
    assert result.escalation is not None
    assert result.escalation.cause == "no_change"
    assert result.escalation.reason == "No fix changed anything. check 1: tired"


@pytest.mark.parametrize("exit_code", [0, 1, 75])
def test_a_check_may_say_itself_how_long_to_wait(exit_code: int) -> None:
    said = CommandResult(exit_code=exit_code, output="building\nLOOPWARDEN_WAIT 90\n")
    result, _, waits = watched([said, GREEN])
    assert (result.outcome, waits) == (Outcome.SUCCESS, [90])


@pytest.mark.parametrize("output", ["LOOPWARDEN_WAIT 90\ndone", "see LOOPWARDEN_WAIT 90", ""])
def test_only_the_last_line_asks_to_wait(output: str) -> None:
    result, _, waits = watched([CommandResult(exit_code=0, output=output)])
    assert (result.outcome, waits) == (Outcome.SUCCESS, [])


@pytest.mark.parametrize(
    ("asked", "waited"),
    [
        ("0", 1),
        ("000090", 90),
        ("86401", 86_400),
        ("1000000", 86_400),
        ("999999999", 86_400),
        ("9" * 5000, 86_400),
    ],
)
def test_a_wait_is_bounded_to_a_day(asked: str, waited: int) -> None:
    _, _, waits = watched([CommandResult(exit_code=0, output=f"LOOPWARDEN_WAIT {asked}"), GREEN])
    assert waits == [waited]


@pytest.mark.parametrize("exit_code", [0, 1, 75])
@pytest.mark.parametrize(
    "asked", ["", " soon", " 2.5", " -3", " +3", " 2s", " 1e400", " 3 4", "90", ": 90", " \u0663"]
)
def test_a_wait_of_anything_but_whole_seconds_is_red(asked: str, exit_code: int) -> None:
    said = CommandResult(exit_code=exit_code, output=f"building\nLOOPWARDEN_WAIT{asked}\n")
    result, made, waits = watched([said], budget=1)
    assert (result.outcome, waits) == (Outcome.BUDGET_EXHAUSTED, [])
    assert made.commands.ran[-1] == ("fix check 1", "fix")
    (line,) = result.final_state.red
    assert line == (
        f"check 1: ci exited with {exit_code}, but its last line must be LOOPWARDEN_WAIT and a"
        f" whole number of seconds, not {f'LOOPWARDEN_WAIT{asked}'!r}"
    )


def test_a_red_check_is_fixed_although_another_is_not_ready() -> None:
    made = world(exits={"slow": [75, 0], "quick": [1, 0], "fix": [0]})
    contract = PATTERN.build(
        Spec(checks=["slow", "quick"], fixes=["fix"]), State(), made.effects, INFO
    )
    result = run_loop(contract, sleep=lambda _: None)
    assert (result.outcome, result.attempts) == (Outcome.SUCCESS, 2)
    assert [command for _, command in made.commands.ran][:3] == ["slow", "quick", "fix"]


def test_rc065_no_checks_right_after_a_push_reads_as_pending_and_never_as_green() -> None:
    looks = [NO_CHECKS, NO_CHECKS, CommandResult(exit_code=8, output=""), RED, RED]
    result, made, waits = watched(looks, f"gh-poll:{PR}", grace_polls=3, budget=1)
    assert len(waits) == 3
    assert result.outcome is Outcome.BUDGET_EXHAUSTED
    assert result.evaluations[-1].label == "checks failed"
    assert made.commands.ran[-1] == ("fix check 1", "fix")


def test_rc065_no_checks_after_the_grace_is_a_failure() -> None:
    result, _, waits = watched([NO_CHECKS] * 4, f"gh-poll:{PR}", grace_polls=3, budget=1)
    assert (len(waits), result.outcome) == (3, Outcome.BUDGET_EXHAUSTED)


def test_s3_11_a_watch_blocks_and_a_second_look_names_the_failing_runs() -> None:
    result, made, waits = watched([RED, RED], f"gh:{PR}", budget=1)
    assert [command for _, command in made.commands.ran] == [
        f"gh pr checks {PR} --watch --fail-fast",
        f"gh pr checks {PR}",
        "fix",
    ]
    assert waits == []
    assert result.final_state.red == (f"check 1: gh:{PR} exited with 1",)


def test_s3_11_the_ids_of_the_failing_runs_reach_the_fixer() -> None:
    made = world({"fixer": ["no"]})
    made.commands._run = lambda *_: RED  # type: ignore[method-assign]
    contract = PATTERN.build(
        Spec(checks=[f"gh:{PR}"]), State(), made.effects, replace(INFO, budget=1)
    )
    run_loop(contract)
    (call,) = made.agents.by("fixer")
    assert "build failed: run 91, https://ci/acme/till/actions/runs/91/job/3" in call.text


def test_s3_11_a_watch_that_our_time_limit_ended_is_not_ready() -> None:
    late = CommandResult(exit_code=None, output="", timed_out=True)
    result, _, waits = watched([late, GREEN], f"gh:{PR}")
    assert (result.outcome, waits) == (Outcome.SUCCESS, [30.0])


@pytest.mark.parametrize("check", ["gh:", "gh:acme/till", f"gh:{PR}; true", "gh-poll:http://x/1"])
def test_a_pull_request_is_named_by_its_address(check: str) -> None:
    with pytest.raises(ValidationError, match="must name a pull request by its address"):
        Spec(checks=[check])


QUOTA = '{"fixed": false, "skipped": true, "reason": "quota"}'


@pytest.mark.parametrize("by_agent", [True, False])
def test_s3_10_a_quota_skip_is_a_pass_without_an_increment_or_another_fix(by_agent: bool) -> None:
    made = world({"fixer": [f"I cannot.\n{QUOTA}"]}, {"a": [1], "b": [1], "fix": [0]})
    made.commands.output = f"trying\n{QUOTA}\n"
    fixes = [] if by_agent else ["fix"]
    result = run_loop(
        PATTERN.build(Spec(checks=["a", "b"], fixes=fixes), State(), made.effects, INFO)
    )
    evaluation = result.evaluations[-1]
    assert result.outcome is Outcome.SUCCESS
    assert (evaluation.cause, evaluation.costs_round) == ("quota_skipped", False)
    assert result.final_state.passed_quota_skipped
    assert len(made.agents.calls) + [c for _, c in made.commands.ran].count("fix") == 1


def test_s3_g2_a_skip_for_another_reason_is_no_pass() -> None:
    made = world({"fixer": ['{"fixed": false, "skipped": true, "reason": "too hard"}']}, {"a": [1]})
    result = run_loop(PATTERN.build(Spec(checks=["a"]), State(), made.effects, INFO))
    assert result.escalation is not None
    assert result.escalation.cause == "no_change"


def test_s3_04_a_fixer_that_fixed_something_elsewhere_says_so() -> None:
    made = world({"fixer": ['pushed\n{"fixed": true}']}, {"a": [1, 0], "b": [1, 0]})
    result = run_loop(PATTERN.build(Spec(checks=["a", "b"]), State(), made.effects, INFO))
    assert (result.outcome, len(made.agents.calls)) == (Outcome.SUCCESS, 1)


@pytest.mark.parametrize(
    "text",
    ["", "quota", "[1]", '{"skipped": "true", "reason": "quota"}', "[" * 100_000, QUOTA + "\nbye"],
)
def test_anything_else_is_no_report(text: str) -> None:
    assert not read_report(text).out_of_quota


def test_a_report_is_the_last_line() -> None:
    assert read_report('log\n{"fixed": true, "reason": 3}\n') == FixReport(fixed=True)
