"""check_fix as a loop inside a loop: called like a function, with typed results (S3-7, S3-8)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, overload

from loops.core.contract import Outcome, run_loop
from loops.core.effects import Effects
from loops.core.errors import LoopwardenError
from loops.core.limits import Limits
from loops.patterns.base import BuildInfo
from loops.patterns.check_fix import PATTERN, Spec


@dataclass(frozen=True, kw_only=True)
class CheckFixOutput:
    """Every check passes, or a quota is used up. A loop of your own may have a subclass."""

    rounds: int
    passed_quota_skipped: bool


class CheckFixError(LoopwardenError):
    """The loop ended with a red check; the message is its exact error.

    A loop of your own may have a subclass, so that callers can tell loops apart (S3-8).

    `cause` is the stable word for why, `red` has one line for each red check.
    """

    def __init__(self, message: str, *, cause: str, rounds: int, red: tuple[str, ...]) -> None:
        super().__init__(message)
        self.cause, self.rounds, self.red = cause, rounds, red


OutputT = TypeVar("OutputT", bound=CheckFixOutput)


@overload
def check_and_fix(
    spec: Spec,
    effects: Effects,
    info: BuildInfo,
    *,
    error: type[CheckFixError] = ...,
    sleep: Callable[[float], None] = ...,
) -> CheckFixOutput: ...


@overload
def check_and_fix(
    spec: Spec,
    effects: Effects,
    info: BuildInfo,
    *,
    output: type[OutputT],
    error: type[CheckFixError] = ...,
    sleep: Callable[[float], None] = ...,
) -> OutputT: ...


def check_and_fix(
    spec: Spec,
    effects: Effects,
    info: BuildInfo,
    *,
    output: type[CheckFixOutput] = CheckFixOutput,
    error: type[CheckFixError] = CheckFixError,
    sleep: Callable[[float], None] = time.sleep,
) -> CheckFixOutput:
    """Run the loop to its end inside an attempt of another loop: return `output`, raise `error`.

    Its counter starts anew with each call (S3-G3); `info.budget` is the cap of this call. What it
    calls is charged to the run of the outer loop, whose limits hold for all calls together.
    """
    contract = PATTERN.build(spec, PATTERN.initial(spec), effects, info)
    result = run_loop(contract, sleep=sleep)
    state = result.final_state
    if result.outcome is Outcome.SUCCESS:
        quota = state.passed_quota_skipped
        return output(rounds=result.attempts, passed_quota_skipped=quota)
    escalation = result.escalation
    message = escalation.reason if escalation else ""
    if result.outcome is Outcome.BUDGET_EXHAUSTED:
        message = PATTERN.limit_reason(spec, Limits(iterations=info.budget))
    cause = escalation.cause if escalation else ""
    raise error(message, cause=cause, rounds=result.attempts, red=state.red)
