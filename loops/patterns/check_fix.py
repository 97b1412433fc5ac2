"""Run the checks, fix one failure, check again: a bounded watch loop (S3).

One attempt is one round of all checks and, if any is red, one fix. So a cap of N gives N rounds of
checks and at most N fixes, and the Nth fix is not checked any more (S3-6).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import Field, field_validator, model_validator

from loops.core.contract import (
    ActionDecision,
    Escalation,
    Evaluation,
    Judgment,
    LoopContext,
    LoopContract,
)
from loops.core.effects import Effects
from loops.core.lifecycle import SENTENCES, StopReason
from loops.core.limits import Limits
from loops.core.progress import Mark, same_failure
from loops.core.wrapping import DATA_RULE, ESCAPE_RULE, Tag
from loops.patterns import gh_checks
from loops.patterns.asking import work_in_turn
from loops.patterns.base import BuildInfo, CannotGoOn, Needs, Pattern, SpecModel, accepted
from loops.patterns.commands import RanCheck, failure_of, must_exist, named_checks
from loops.patterns.fix_report import FixReport, read_report
from loops.patterns.stalls import Returns, SameActions, SameFailures, Watcher
from loops.patterns.watching import (
    USUAL_GRACE,
    USUAL_MAX_POLLS,
    USUAL_POLL_SECONDS,
    Checks,
    MaxPolls,
    NotReady,
    PollSeconds,
    Watching,
    red_of,
)

MAX_CHECK_FIX_ITERATIONS = 5
ACTIONS = frozenset({"check_and_fix"})
FIXERS = ("fixer", "fallback_fixer")
"""Who fixes, and who after a refusal, if the task names one (S0-G6)."""


class Spec(SpecModel):
    """Which checks to watch and what may fix them."""

    loop_name: str = Field(
        default="check_fix",
        pattern=r"[A-Za-z0-9]",
        max_length=60,
        title="Name of the loop",
        description="Stands in the error when the iterations are used up.",
    )
    checks: list[str] = Field(
        min_length=1,
        title="Checks",
        description="One command per line. All of them run in each round; exit code 0 passes, 75"
        " says not yet. gh:ADDRESS watches a pull request, gh-poll:ADDRESS looks and comes back.",
        json_schema_extra={"multiline": True},
    )
    fixes: list[str] = Field(
        default_factory=list,
        title="Fixes",
        description="One command for every check, or one line per check in the same order. An"
        " empty line, or no line at all, leaves the fix to the agent.",
        json_schema_extra={"multiline": True},
    )
    instructions: str = Field(
        default="",
        title="Instructions",
        description="What the fixing agent should know or leave alone.",
        json_schema_extra={"multiline": True},
    )

    poll_seconds: PollSeconds = USUAL_POLL_SECONDS
    max_polls: MaxPolls = USUAL_MAX_POLLS
    grace_polls: int = Field(
        default=USUAL_GRACE,
        ge=0,
        title="Looks before no checks is a failure",
        description="So often a pull request without any check reads as not ready, never as green.",
    )

    same_failure_limit: SameFailures = 3
    same_action_limit: SameActions = 3
    return_limit: Returns = 2

    @field_validator("checks")
    @classmethod
    def _no_blank_check(cls, checks: list[str]) -> list[str]:
        if not all(check.strip() for check in checks):
            raise ValueError("a check must be a command, not an empty line")
        for check in checks:
            if gh_checks.is_named(check) and not gh_checks.address_of(check):
                raise ValueError(f"{check.strip()} must name a pull request by its address")
        return checks

    @model_validator(mode="after")
    def _fixes_match_checks(self) -> Spec:
        if len(self.fixes) not in (0, 1, len(self.checks)):
            raise ValueError(
                f"give no fix, one fix for all, or one per check: there are {len(self.checks)}"
                f" checks and {len(self.fixes)} fixes"
            )
        return self

    def fix_for(self, number: int) -> str:
        """The fix command of a check, or an empty string when the agent is to fix it."""
        if not self.fixes:
            return ""
        return self.fixes[0 if len(self.fixes) == 1 else number].strip()


class State(Watching):
    """What the last round found and did."""

    round: int = 0
    red: tuple[str, ...] = ()
    """One line per failed check."""
    fixed_by: str = ""
    """Name of the check whose fix changed something."""
    changed: bool = False
    """Whether anything in the workspace changed, by checks or fixes."""
    last_fix_unverified: bool = False
    """The last thing that happened was a fix, and no check ran after it (S3-6)."""
    passed_quota_skipped: bool = False
    """A fixer reported that a quota is used up: a pass, but no true green (S3-10)."""
    trail: tuple[Mark, ...] = ()
    said: tuple[str, ...] = ()
    """Why fixers changed nothing, in their own words."""


@dataclass(frozen=True, kw_only=True)
class _Fix:
    """What came of the fixes of one round."""

    check: str = ""
    """Name of the check that was fixed."""
    fixed: bool = False
    out_of_quota: bool = False
    reasons: tuple[str, ...] = ()
    """What the fixers said of it."""


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """The two halves of one attempt."""

    spec: Spec
    effects: Effects
    info: BuildInfo

    def act(self, context: LoopContext[State]) -> ActionDecision[State]:
        """Run every check; if any is red, try fixes in order until one changes something."""
        before = self.effects.workspace.snapshot()
        try:
            red = red_of(self._checks.look(context.state))
            trail, failure = context.state.trail, failure_of(red)
            noted = self._watcher.noted(trail, Mark(failure=failure))
            again = same_failure(noted, self.spec.same_failure_limit)
            hopeless = again and context.attempt < self.info.budget
            fix = _Fix() if hopeless else self._fix(red, context)
        except NotReady as wait:
            trail = self._watcher.known(context.state.trail)
            state = context.state.model_copy(update={"trail": trail, **wait.kept})
            return ActionDecision(action="check_and_fix", state=state, not_yet=wait.later)
        except CannotGoOn as fault:
            return _stop(fault.cause, str(fault))
        after = self.effects.workspace.snapshot()
        state = State(
            round=context.attempt,
            red=tuple(check.line for check in red),
            fixed_by=fix.check,
            changed=fix.fixed or after != before,
            last_fix_unverified=bool(fix.check),
            passed_quota_skipped=fix.out_of_quota,
            said=fix.reasons,
            trail=self._watcher.noted(trail, Mark(before=before, after=after, failure=failure))
            if red
            else (),
        )
        return ActionDecision(action="check_and_fix", state=state)

    def _fix(self, red: Sequence[RanCheck], context: LoopContext[State]) -> _Fix:
        """Try to fix one failure after the other; the first success ends it (S3-4, S3-10)."""
        snapshot, reasons = self.effects.workspace.snapshot(), list[str]()
        for check in red:
            report = self._try(check, context)
            reasons += [f"{check.name}: {report.reason.strip()}"] if report.reason.strip() else []
            if report.out_of_quota:
                return _Fix(out_of_quota=True)
            if report.fixed or self.effects.workspace.snapshot() != snapshot:
                return _Fix(check=check.name, fixed=True)
        return _Fix(reasons=tuple(reasons))

    def _try(self, check: RanCheck, context: LoopContext[State]) -> FixReport:
        command = self.spec.fix_for(check.number)
        if command:
            name = f"fix {check.name}"
            result = self.effects.commands.fix(name, command)
            must_exist(name, command, result)
            return read_report(result.output)
        checks = named_checks(self.spec.checks)
        prompt = self._prompt(check, context)
        return read_report(work_in_turn(self.effects, FIXERS, prompt, checks=checks).text)

    def _prompt(self, check: RanCheck, context: LoopContext[State]) -> str:
        parts = [
            "A check of this repository fails. Change the files so that it passes, with the"
            " smallest change that mends the cause. Do not weaken or skip the check.",
            f"{DATA_RULE} {ESCAPE_RULE}",
            f"It failed like this: {check.line}\nThe end of its output:",
            self.info.wrap(Tag.OUTPUT, check.output),
        ]
        if self.spec.instructions.strip():
            parts.insert(1, self.spec.instructions.strip())
        if context.feedback:
            parts += ["What was found before:", self.info.wrap(Tag.FEEDBACK, context.feedback)]
        return "\n\n".join(parts)

    def judge(self, state: State) -> Evaluation:
        """Green is a success. Red goes on, unless nothing changed and so nothing can get better.

        Only a round with a fix counts (S3-5): the look that finds all green uses no iteration.
        """
        if not state.red:
            return Evaluation(judgment=Judgment.SUCCESS, label="green", costs_round=False)
        if state.passed_quota_skipped:
            return Evaluation(
                judgment=Judgment.SUCCESS,
                cause=StopReason.QUOTA_SKIPPED,
                feedback=SENTENCES[StopReason.QUOTA_SKIPPED],
                reasons=state.red,
                label="quota skipped",
                costs_round=False,
            )
        red = Evaluation(
            judgment=Judgment.CONTINUE,
            feedback="\n".join(state.red),
            reasons=state.red,
            label="checks failed",
        )
        judged = self._watcher.judged(red, state.trail, state.round)
        if judged is not red or state.changed or state.round >= self.info.budget:
            return judged
        cause = StopReason.NO_CHANGE
        said = f"{SENTENCES[cause]} {'; '.join(state.said)}".strip()
        return replace(red, judgment=Judgment.ESCALATE, cause=cause, feedback=said)

    @property
    def _checks(self) -> Checks:
        return Checks(
            commands=self.effects.commands,
            info=self.info,
            checks=list(named_checks(self.spec.checks).items()),
            poll_seconds=self.spec.poll_seconds,
            max_polls=self.spec.max_polls,
            grace_polls=self.spec.grace_polls,
        )

    @property
    def _watcher(self) -> Watcher:
        return Watcher(spec=self.spec, info=self.info)


def _stop(cause: StopReason, reason: str) -> ActionDecision[State]:
    return ActionDecision(action="check_and_fix", escalation=Escalation(cause=cause, reason=reason))


def build(spec: Spec, state: State, effects: Effects, info: BuildInfo) -> LoopContract[State]:
    """The contract of one watch loop."""
    loop = _Loop(spec=spec, effects=effects, info=info)
    return LoopContract(
        local_aim=info.local_aim,
        initial_state=state,
        action_policy=loop.act,
        evaluator=loop.judge,
        budget=info.budget,
        stopping_condition=accepted,
        authority_scope=info.scope(ACTIONS),
    )


def limit_name(loop_name: str) -> str:
    """The name of the cap: `CI watch` and `ciWatch` have `MAX_CI_WATCH_ITERATIONS` (S3-2)."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", loop_name)
    return f"MAX_{'_'.join(words).upper()}_ITERATIONS"


def _needs(spec: Spec) -> Needs:
    by_agent = any(not spec.fix_for(number) for number in range(len(spec.checks)))
    return Needs(roles=frozenset(FIXERS[:1] if by_agent else ()), workspace=True)


PATTERN = Pattern(
    name="check_fix",
    summary="Checks run, the first failure that can be fixed is fixed, and the checks run again.",
    stops_when="Every check passes in one round.",
    spec=Spec,
    initial=lambda _: State(),
    build=build,
    load_state=lambda _, stored: State.model_validate(stored),
    needs=_needs,
    roles=dict.fromkeys(FIXERS, False),
    uses_workspace="required",
    allowed_actions=ACTIONS,
    default_limits=Limits(iterations=MAX_CHECK_FIX_ITERATIONS),
    default_on_limit="stop",
    limit_reason=lambda spec, _: f"{spec.loop_name} exceeded {limit_name(spec.loop_name)}",
    example={"checks": ["python -m pytest -q"], "fixes": ["ruff check --fix ."]},
)
