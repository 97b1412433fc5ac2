"""What may follow what, and when it stops, in code and not in a model (S2-1 to S2-10, S2-33)."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from loops.core.errors import IllegalMove
from loops.core.lifecycle import StopReason
from loops.core.plan_review import Review, ReviewVerdict
from loops.core.plan_states import (
    ApprovalRequired,
    PlanLimits,
    PlanStatus,
    RunState,
    check_plan_move,
    limit_reached,
    next_status,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LIMITS = PlanLimits(
    max_revisions=3,
    max_steps=10,
    max_model_calls=20,
    max_tool_calls=30,
    max_total_tokens=1000,
    deadline_at=(NOW + timedelta(seconds=1)).isoformat(),
)
STATE = RunState(
    id="1",
    status=PlanStatus.REVIEWING,
    revision=0,
    model_calls=0,
    tool_calls=0,
    consumed_tokens=0,
    limits=LIMITS,
)
SPENT = replace(STATE, revision=3, model_calls=20, tool_calls=30, consumed_tokens=1000, steps=10)
LATER = NOW + timedelta(seconds=1)

# Written out once more on purpose: a change of the table must be made twice.
MOVES = {
    ("planning", "validating"),
    ("validating", "planning"),
    ("validating", "revising"),
    ("validating", "executing"),
    ("validating", "awaiting_input"),
    ("executing", "reviewing"),
    ("executing", "awaiting_input"),
    ("executing", "awaiting_approval"),
    ("reviewing", "succeeded"),
    ("reviewing", "awaiting_input"),
    ("reviewing", "revising"),
    ("revising", "validating"),
    ("awaiting_input", "planning"),
    ("awaiting_input", "executing"),
    ("awaiting_input", "revising"),
    ("awaiting_approval", "executing"),
    ("awaiting_approval", "revising"),
} | {
    (old, new)
    for old in (
        "planning",
        "validating",
        "executing",
        "reviewing",
        "revising",
        "awaiting_input",
        "awaiting_approval",
    )
    for new in ("failed", "cancelled")
}


def review(verdict: ReviewVerdict) -> Review:
    return Review(verdict=verdict, findings=())


def test_s2_04_there_are_exactly_ten_statuses() -> None:
    assert [status.value for status in PlanStatus] == [
        "planning",
        "validating",
        "executing",
        "reviewing",
        "revising",
        "awaiting_input",
        "awaiting_approval",
        "succeeded",
        "failed",
        "cancelled",
    ]


def test_s2_05_there_are_exactly_six_limits() -> None:
    assert [item.name for item in fields(PlanLimits)] == [
        "max_revisions",
        "max_steps",
        "max_model_calls",
        "max_tool_calls",
        "max_total_tokens",
        "deadline_at",
    ]


def test_s2_06_the_run_state_is_read_only() -> None:
    with pytest.raises(FrozenInstanceError):
        STATE.revision = 1  # type: ignore[misc]


@pytest.mark.parametrize("old", PlanStatus)
@pytest.mark.parametrize("new", PlanStatus)
def test_s2_07_every_pair_of_statuses_is_a_move_or_raises(old: PlanStatus, new: PlanStatus) -> None:
    state = replace(STATE, status=old)
    if (old.value, new.value) in MOVES:
        check_plan_move(state, new, proposed="d", approved="d")
    else:
        with pytest.raises(IllegalMove, match=f"{old} cannot become {new}"):
            check_plan_move(state, new, proposed="d", approved="d")


def test_s2_08_no_revision_without_budget() -> None:
    check_plan_move(replace(STATE, revision=2), PlanStatus.REVISING)
    with pytest.raises(IllegalMove, match="no revision is left"):
        check_plan_move(replace(STATE, revision=3), PlanStatus.REVISING)


@pytest.mark.parametrize(("proposed", "approved"), [("a", "b"), ("a", ""), ("", "")])
def test_s2_09_only_exactly_what_was_approved_may_run(proposed: str, approved: str) -> None:
    state = replace(STATE, status=PlanStatus.AWAITING_APPROVAL)
    with pytest.raises(ApprovalRequired, match="Approval is required before execution"):
        check_plan_move(state, PlanStatus.EXECUTING, proposed=proposed, approved=approved)


@pytest.mark.parametrize("ended", ["succeeded", "failed", "cancelled"])
@pytest.mark.parametrize("new", PlanStatus)
def test_s2_10_nothing_follows_an_end(ended: str, new: PlanStatus) -> None:
    with pytest.raises(IllegalMove):
        check_plan_move(replace(STATE, status=PlanStatus(ended)), new)


def test_s2_33_accept_wins_when_every_limit_is_spent() -> None:
    assert next_status(SPENT, review(ReviewVerdict.ACCEPT), now=LATER) == "succeeded"


def test_s2_33_blocked_comes_before_the_limits() -> None:
    assert next_status(SPENT, review(ReviewVerdict.BLOCKED), now=LATER) == "awaiting_input"


def test_s2_33_otherwise_it_revises() -> None:
    assert next_status(STATE, review(ReviewVerdict.REVISE), now=NOW) == "revising"


@pytest.mark.parametrize(
    ("axis", "cap", "reason"),
    [
        ("revision", 3, "revisions"),
        ("model_calls", 20, "model_calls"),
        ("tool_calls", 30, "tool_calls"),
        ("consumed_tokens", 1000, "tokens"),
        ("steps", 10, "steps"),
    ],
)
def test_s2_33_s2_g1_reaching_a_limit_exactly_is_reaching_it(
    axis: str, cap: int, reason: str
) -> None:
    def status(value: int) -> str:
        changed: dict[str, Any] = {axis: value}
        return next_status(replace(STATE, **changed), review(ReviewVerdict.REVISE), now=NOW)

    assert [status(cap - 1), status(cap), status(cap + 1)] == ["revising", "failed", "failed"]
    changed: dict[str, Any] = {axis: cap}
    assert limit_reached(replace(STATE, **changed), now=NOW) == reason


def test_s2_33_the_deadline_is_reached_at_its_very_moment() -> None:
    asked = review(ReviewVerdict.REVISE)
    assert next_status(STATE, asked, now=NOW) == "revising"
    assert next_status(STATE, asked, now=LATER) == "failed"
    assert limit_reached(STATE, now=LATER) == "deadline"


def test_s2_33_the_first_limit_in_the_seed_s_order_is_the_reason() -> None:
    order = [limit_reached(SPENT, now=LATER)]
    calm: list[dict[str, Any]] = [
        {"revision": 0},
        {"model_calls": 0},
        {"tool_calls": 0},
    ]
    state = SPENT
    for change in calm:
        state = replace(state, **change)
        order.append(limit_reached(state, now=LATER))
    assert order == [
        StopReason.REVISIONS,
        StopReason.MODEL_CALLS,
        StopReason.TOOL_CALLS,
        StopReason.DEADLINE,
    ]


def test_s2_33_an_axis_without_a_limit_is_never_reached() -> None:
    free = PlanLimits(max_revisions=9, max_steps=99)
    assert limit_reached(replace(SPENT, limits=free), now=LATER) is None
