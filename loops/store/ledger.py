"""The ledger: reserve the worst case, send, settle the real usage.

The run's row is the authority; the counters in Redis are the fast wall in front of it.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from loops.core.errors import LoopwardenError
from loops.core.lifecycle import RunStatus
from loops.core.limits import Amount, first_refusal
from loops.crashpoints import reach
from loops.models import Reservation, ReservationState, Run, Step, StepStatus
from loops.statements import as_json, execute, fetch
from loops.store import holds
from loops.store.attempts import Claim

_TRIES = 100


class _GraphIsFull(Exception):
    """Takes the run's reservation back: what its graph shares does not admit it."""


class LeaseLost(LoopwardenError):
    """The attempt belongs to somebody else now, or was cancelled. Nothing more is written."""


@dataclass(frozen=True, kw_only=True)
class StepCall:
    """Which step asks, and for what."""

    seq: int
    kind: str
    role: str
    name: str
    digest: str
    prompt: str = ""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step came to. `usage` of None: sent, but what it used was never learned."""

    status: str
    result: dict[str, Any] | None = None
    output: str = ""
    tree: str = ""
    error: str = ""
    tokens: int | None = None
    cost_microusd: int | None = None


def reserve(claim: Claim, call: StepCall, worst: Amount) -> int:
    """Open the step and reserve its worst case on the run's row. Returns the reservation's id.

    Raises `LimitReached` when it does not fit, `LeaseLost` when the attempt is not ours any more.
    """
    params = {"run": claim.run_id, "no": claim.no, "token": claim.token, **asdict(worst)}
    for _ in range(_TRIES):
        with contextlib.suppress(_GraphIsFull), transaction.atomic():
            run = fetch("reserve", params)
            if run is not None:
                if run[0] is not None and not execute("reserve_graph", {**params, "graph": run[0]}):
                    raise _GraphIsFull
                execute("open_step", {**params, **asdict(call)})
                row = fetch("open_reservation", {**params, "seq": call.seq})
                if row is not None:
                    return int(row[0])
        refusal = _refusal(claim, worst)
        # None: another call settled in between, so what did not fit may fit now.
        if refusal is not None:
            raise refusal
    raise LeaseLost


def send(reservation_id: int) -> bool:
    """Mark the last moment before the bytes go out. False: it was voided, or the run must stop."""
    return execute("send", {"id": reservation_id}) == 1


def settle(claim: Claim, seq: int, reservation_id: int, outcome: StepResult) -> bool:
    """Record the step and settle its reservation, in one transaction.

    The money was spent whoever holds the lease, so settling does not need it; recording does.
    False: the lease is gone and the result was dropped.
    """
    known = outcome.tokens is not None and outcome.cost_microusd is not None
    with transaction.atomic():
        _close(
            reservation_id,
            ReservationState.SETTLED if known else ReservationState.UNKNOWN,
            tokens=outcome.tokens,
            cost=outcome.cost_microusd,
        )
        recorded = execute(
            "close_step",
            {
                "run": claim.run_id,
                "no": claim.no,
                "seq": seq,
                "token": claim.token,
                "status": outcome.status,
                "result": as_json(outcome.result),
                "output": outcome.output,
                "tree": outcome.tree,
                "error": outcome.error,
            },
        )
    return recorded == 1


def release(reservation_id: int) -> None:
    """Give a reservation back that was surely never sent."""
    with transaction.atomic():
        _close(reservation_id, ReservationState.RELEASED, tokens=0, cost=0)


def close_lost(run_id: int, live_token: int) -> int:
    """Close what dead workers left open: never sent is given back, sent is charged in full.

    Returns how many reservations were closed.
    """
    lost = Reservation.objects.filter(
        run_id=run_id, state__in=[ReservationState.RESERVED, ReservationState.IN_FLIGHT]
    ).exclude(token=live_token)
    closed = 0
    for reservation in lost:
        with transaction.atomic():
            if reservation.state == ReservationState.RESERVED:
                closed += _close(reservation.pk, ReservationState.RELEASED, tokens=0, cost=0)
            else:
                closed += _close(reservation.pk, ReservationState.UNKNOWN, tokens=None, cost=None)
        reach("closing")
    return closed


def may_have_been_sent(step: Step) -> bool:
    """Whether an unfinished step may have reached the other side."""
    return Reservation.objects.filter(
        run_id=step.run_id,
        attempt_no=step.attempt_no,
        seq=step.seq,
        state__in=[
            ReservationState.IN_FLIGHT,
            ReservationState.UNKNOWN,
            ReservationState.SETTLED,
        ],
    ).exists()


def mark_unknown(claim: Claim, step: Step, why: str) -> None:
    """Say of a lost worker's step that nobody knows what became of it; nothing repeats it."""
    held = Run.objects.filter(pk=claim.run_id, lease_token=claim.token, status=RunStatus.RUNNING)
    Step.objects.filter(pk=step.pk, run__in=held).update(
        status=StepStatus.OUTCOME_UNKNOWN, error=why, ended_at=Now()
    )


def void_and_sum(run_id: int) -> Amount:
    """For a rebuild of the Redis counters: void what is surely unsent, sum what counts.

    One transaction under the run's row lock, so no reservation slips in between.
    """
    with transaction.atomic():
        run = Run.objects.select_for_update().get(pk=run_id)
        for reservation in Reservation.objects.filter(run=run, state=ReservationState.RESERVED):
            _close(reservation.pk, ReservationState.VOID, tokens=0, cost=0)
        run.refresh_from_db()
    used, reserved = asdict(run.used), asdict(run.reserved)
    return Amount(**{axis: used[axis] + reserved[axis] for axis in used})


def _close(reservation_id: int, state: str, *, tokens: int | None, cost: int | None) -> int:
    row = fetch(
        "close_reservation",
        {"id": reservation_id, "state": state, "actual_tokens": tokens, "actual_cost": cost},
    )
    if row is None:
        return 0
    run_id, no, est_model_calls, est_tool_calls, est_tokens, est_cost = row
    charged = state in (ReservationState.SETTLED, ReservationState.UNKNOWN)
    spent_tokens = est_tokens if tokens is None else tokens
    spent_cost = est_cost if cost is None else cost
    params = {
        "run": run_id,
        "est_model_calls": est_model_calls,
        "est_tool_calls": est_tool_calls,
        "est_tokens": est_tokens,
        "est_cost": est_cost,
        "model_calls": est_model_calls if charged else 0,
        "tool_calls": est_tool_calls if charged else 0,
        "tokens": min(spent_tokens, est_tokens),
        "cost": min(spent_cost, est_cost),
        "over_tokens": max(0, spent_tokens - est_tokens),
        "over_cost": max(0, spent_cost - est_cost),
    }
    run = fetch("settle", params)
    if run is not None and run[0] is not None:
        execute("settle_graph", {**params, "graph": run[0]})
    execute("settle_attempt", {"run": run_id, "no": no, "tokens": spent_tokens, "cost": spent_cost})
    return 1


def _refusal(claim: Claim, worst: Amount) -> LoopwardenError | None:
    run = (
        Run.objects.select_related("graph")
        .filter(
            Q(deadline_at__isnull=True) | Q(deadline_at__gt=Now()),
            pk=claim.run_id,
            lease_token=claim.token,
            status=RunStatus.RUNNING,
            cancel_requested=False,
            lease_expires_at__gt=Now(),
        )
        .first()
    )
    if run is None or holds.is_stopped():
        return LeaseLost()
    own = first_refusal(worst, used=run.used, reserved=run.reserved, limits=run.limits)
    if own is not None or run.graph is None:
        return own
    graph = run.graph
    shared = first_refusal(worst, used=graph.used, reserved=graph.reserved, limits=graph.limits)
    if shared is not None:
        shared.owner = "graph"
    return shared
