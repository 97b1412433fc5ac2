"""The states of a plan-execute-review run, what may follow what, and when it stops (S2-4 to S2-10).

No model has a say here: these functions get facts and a typed review, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from loops.core.errors import IllegalMove, LoopwardenError
from loops.core.lifecycle import StopReason
from loops.core.plan_review import Review, ReviewVerdict


class PlanStatus(StrEnum):
    """Exactly ten (S2-4)."""

    PLANNING = "planning"
    VALIDATING = "validating"
    EXECUTING = "executing"
    REVIEWING = "reviewing"
    REVISING = "revising"
    AWAITING_INPUT = "awaiting_input"
    AWAITING_APPROVAL = "awaiting_approval"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


_S = PlanStatus
_ENDS = frozenset({_S.FAILED, _S.CANCELLED})
PLAN_MOVES: dict[PlanStatus, frozenset[PlanStatus]] = {
    _S.PLANNING: frozenset({_S.VALIDATING}) | _ENDS,
    _S.VALIDATING: frozenset({_S.PLANNING, _S.REVISING, _S.EXECUTING, _S.AWAITING_INPUT}) | _ENDS,
    _S.EXECUTING: frozenset({_S.REVIEWING, _S.AWAITING_INPUT, _S.AWAITING_APPROVAL}) | _ENDS,
    _S.REVIEWING: frozenset({_S.SUCCEEDED, _S.AWAITING_INPUT, _S.REVISING}) | _ENDS,
    _S.REVISING: frozenset({_S.VALIDATING}) | _ENDS,
    _S.AWAITING_INPUT: frozenset({_S.PLANNING, _S.EXECUTING, _S.REVISING}) | _ENDS,
    _S.AWAITING_APPROVAL: frozenset({_S.EXECUTING, _S.REVISING}) | _ENDS,
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
}


_ORDER = (
    StopReason.REVISIONS,
    StopReason.MODEL_CALLS,
    StopReason.TOOL_CALLS,
    StopReason.DEADLINE,
    StopReason.TOKENS,
    StopReason.STEPS,
)


class ApprovalRequired(LoopwardenError):
    """Approval is required before execution"""


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """Exactly six (S2-5). None is no limit on that axis."""

    max_revisions: int
    max_steps: int
    max_model_calls: int | None = None
    max_tool_calls: int | None = None
    max_total_tokens: int | None = None
    deadline_at: str | None = None
    """An ISO time with its offset."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The run as the rules see it, read-only (S2-6). `steps` counts what was executed (S2-G1)."""

    id: str
    status: PlanStatus
    revision: int
    model_calls: int
    tool_calls: int
    consumed_tokens: int
    limits: PlanLimits
    steps: int = 0


def check_plan_move(
    state: RunState, new: PlanStatus, *, proposed: str = "", approved: str = ""
) -> None:
    """Raise unless `new` may follow (S2-7).

    From reviewing to revising only with revisions left (S2-8); from awaiting approval to executing
    only for exactly the action that was approved, named by its digest (S2-9).
    """
    if new not in PLAN_MOVES[state.status]:
        raise IllegalMove(f"a plan that is {state.status} cannot become {new}")
    match state.status, new:
        case (PlanStatus.REVIEWING, PlanStatus.REVISING):
            if state.revision >= state.limits.max_revisions:
                raise IllegalMove("no revision is left")
        case (PlanStatus.AWAITING_APPROVAL, PlanStatus.EXECUTING):
            if not proposed or proposed != approved:
                raise ApprovalRequired


def next_status(state: RunState, review: Review, *, now: datetime) -> PlanStatus:
    """What follows a review (S2-33): accepting wins over spent limits."""
    if review.verdict is ReviewVerdict.ACCEPT:
        return PlanStatus.SUCCEEDED
    if review.verdict is ReviewVerdict.BLOCKED:
        return PlanStatus.AWAITING_INPUT
    if limit_reached(state, now=now) is not None:
        return PlanStatus.FAILED
    return PlanStatus.REVISING


def limit_reached(state: RunState, *, now: datetime) -> StopReason | None:
    """The first limit that is reached, in the seed's order; equality is reached (S2-33, S2-G1)."""
    limits = state.limits
    deadline = limits.deadline_at
    counted: list[tuple[StopReason, int, int | None]] = [
        (StopReason.REVISIONS, state.revision, limits.max_revisions),
        (StopReason.MODEL_CALLS, state.model_calls, limits.max_model_calls),
        (StopReason.TOOL_CALLS, state.tool_calls, limits.max_tool_calls),
        (StopReason.TOKENS, state.consumed_tokens, limits.max_total_tokens),
        (StopReason.STEPS, state.steps, limits.max_steps),
    ]
    reached = [reason for reason, used, cap in counted if cap is not None and used >= cap]
    if deadline is not None and now >= datetime.fromisoformat(deadline):
        reached.append(StopReason.DEADLINE)
    return next((reason for reason in _ORDER if reason in reached), None)
