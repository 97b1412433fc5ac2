"""The ledger: reserve the worst case, send, settle the real usage.

The rows of run, graph and project day are the authority; the counters in Redis are the fast wall
in front of them. Whoever takes the locks of several takes them in this order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from loops.core.errors import LimitReached, LoopwardenError
from loops.core.lifecycle import RunStatus
from loops.core.limits import Amount, first_refusal, sum_of
from loops.crashpoints import reach
from loops.models import (
    Budget,
    Graph,
    ProjectDay,
    Reservation,
    ReservationState,
    Run,
    Step,
    StepStatus,
)
from loops.statements import as_json, execute, fetch
from loops.store import days, holds
from loops.store.attempts import Claim

_TRIES = 100


_ROWS: Mapping[str, tuple[type[Run | Graph | ProjectDay], str]] = {
    "run": (Run, "run"),
    "graph": (Graph, "run__graph"),
    "day": (ProjectDay, "day"),
}
"""The row of each scope, and how its reservations are found."""


class _Refused(Exception):
    """Takes back what was booked so far: all scopes admit a reservation, or none has it."""


class LeaseLost(LoopwardenError):
    """The attempt belongs to somebody else now, or was cancelled. Nothing more is written."""


class DayUsedUp(LoopwardenError):
    """The project's day does not admit the call; the run waits and is not failed.

    `goes_on_at` is when the next day begins, or None where calls in flight hold what is missing.
    """

    def __init__(self, refusal: LimitReached, goes_on_at: datetime | None) -> None:
        super().__init__(
            f"the project's day does not admit the next call on {refusal.axis}. {refusal.details}"
        )
        self.refusal, self.goes_on_at = refusal, goes_on_at


@dataclass(frozen=True)
class Scope:
    """One row that a reservation is booked on, with the caps that held at that moment."""

    kind: str
    """run, graph or day."""
    id: int
    caps: tuple[int | None, ...] = ()
    """In the order of `Amount`."""


class Booking(int):
    """A reservation's id that also knows what it is booked on: run, graph and day, in this order.

    Whoever has only the id can send, settle and release it as well.
    """

    scopes: tuple[Scope, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a scope has spent or sent, for its counters."""

    total: Amount
    in_flight: Mapping[int, Amount] = field(default_factory=dict)
    """Reservation to its worst case: included in the total until it settles."""


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


def reserve(claim: Claim, call: StepCall, worst: Amount) -> Booking:
    """Open the step and reserve its worst case on run, graph and project day, or on none of them.

    Raises `LimitReached` when it does not fit, `DayUsedUp` when only the project's day does not
    admit it, `LeaseLost` when the attempt is not ours any more.
    """
    params = {"run": claim.run_id, "no": claim.no, "token": claim.token, **asdict(worst)}
    for _ in range(_TRIES):
        with contextlib.suppress(_Refused), transaction.atomic():
            scopes = _book(params, worst)
            day = next((scope.id for scope in scopes if scope.kind == "day"), None)
            execute("open_step", {**params, **asdict(call)})
            row = fetch("open_reservation", {**params, "seq": call.seq, "day": day})
            if row is not None:
                booking = Booking(row[0])
                booking.scopes = scopes
                return booking
        refusal = _refusal(claim, worst)
        # None: another call settled in between, so what did not fit may fit now.
        if refusal is not None:
            raise refusal
    raise LeaseLost


def _book(params: dict[str, Any], worst: Amount) -> tuple[Scope, ...]:
    run = fetch("reserve", params)
    if run is None:
        raise _Refused
    run_id, graph_id, task_id, *caps = run
    scopes = [Scope("run", run_id, tuple(caps))]
    if graph_id is not None:
        scopes.append(_booked("graph", "reserve_graph", {**params, "graph": graph_id}))
    if _costs(worst):
        scopes.append(_booked("day", "reserve_day", {**params, "task": task_id}))
    return tuple(scopes)


def _booked(kind: str, statement: str, params: dict[str, Any]) -> Scope:
    row = fetch(statement, params)
    if row is None:
        raise _Refused
    return Scope(kind, row[0], tuple(row[1:]))


def _costs(worst: Amount) -> bool:
    """A day has caps on nothing else, so a command's call costs it no statement."""
    return bool(worst.tokens or worst.cost_microusd)


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


def scopes_of(run: Run) -> list[Scope]:
    """All that the run was ever booked on, for counters that must be read anew."""
    booked = Reservation.objects.filter(run=run, day__isnull=False)
    days_of = booked.values_list("day", flat=True).distinct()
    graph = [] if run.graph_id is None else [Scope("graph", run.graph_id)]
    return [Scope("run", run.pk), *graph, *(Scope("day", pk) for pk in days_of if pk)]


def void_and_sum(scope: Scope) -> Held:
    """For a rebuild of the Redis counters: void what is surely unsent, sum what counts.

    Each voiding is a transaction of its own, in the usual order of locks. What is reserved after
    it is not in the sum: it asks the counters after they are installed (PROTOCOL 2.5). Under the
    row's lock nothing settles between the two reads.
    """
    model, path = _ROWS[scope.kind]
    booked = Reservation.objects.filter(**{path: scope.id})
    unsent = booked.filter(state=ReservationState.RESERVED).values_list("pk", flat=True)
    for pk in list(unsent):
        with transaction.atomic():
            _close(pk, ReservationState.VOID, tokens=0, cost=0)
    with transaction.atomic():
        row = model._default_manager.select_for_update(no_key=True).get(pk=scope.id)
        in_flight = {
            reservation.pk: reservation.worst
            for reservation in booked.filter(state=ReservationState.IN_FLIGHT)
        }
    return Held(total=sum_of([row.used, *in_flight.values()]), in_flight=in_flight)


def _close(reservation_id: int, state: str, *, tokens: int | None, cost: int | None) -> int:
    row = fetch(
        "close_reservation",
        {"id": reservation_id, "state": state, "actual_tokens": tokens, "actual_cost": cost},
    )
    if row is None:
        return 0
    run_id, day_id, no, est_model_calls, est_tool_calls, est_tokens, est_cost = row
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
    if day_id is not None:
        execute("settle_day", {**params, "day": day_id})
    execute("settle_attempt", {"run": run_id, "no": no, "tokens": spent_tokens, "cost": spent_cost})
    return 1


def _refusal(claim: Claim, worst: Amount) -> LoopwardenError | None:
    run = (
        Run.objects.select_related("graph", "task")
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
    own = _refused_by(run, worst, "run")
    if own is None and run.graph is not None:
        own = _refused_by(run.graph, worst, "graph")
    if own is not None or not _costs(worst):
        return own
    return _refused_by_day(days.today(run.task.project_id), worst)


def _refused_by(row: Budget, worst: Amount, owner: str) -> LimitReached | None:
    refusal = first_refusal(worst, used=row.used, reserved=row.reserved, limits=row.limits)
    if refusal is not None:
        refusal.owner = owner
    return refusal


def _refused_by_day(day: ProjectDay, worst: Amount) -> LoopwardenError | None:
    """A call that no day would admit is a limit of the run; what another day admits waits."""
    refusal = _refused_by(day, worst, "project-day")
    if refusal is None:
        return DayUsedUp(days.why_closed(day, worst), day.ends_at) if day.closed else None
    if refusal.asked > refusal.cap:
        return refusal
    if refusal.used + refusal.asked <= refusal.cap:
        return DayUsedUp(refusal, None)
    return DayUsedUp(refusal, day.ends_at) if days.close(day, refusal) else None
