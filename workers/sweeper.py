"""Finds what got lost. Each pass may run anywhere, any number of times: all of it is guarded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import timedelta

import redis
from django.conf import settings
from django.db import transaction
from django.db.models import (
    DurationField,
    Exists,
    ExpressionWrapper,
    F,
    OuterRef,
    Q,
    QuerySet,
)
from django.db.models.functions import Now

from loops import gates
from loops.admission import scopes_of
from loops.core.lifecycle import SENTENCES, TERMINAL, RunStatus, StopReason
from loops.crashpoints import reach
from loops.models import (
    AgentProfile,
    Attempt,
    Decision,
    EscalationStatus,
    OnLimit,
    Outbox,
    Reservation,
    ReservationState,
    Run,
    WorkerPresence,
)
from loops.store import attempts, holds, lanes, ledger, runs
from workers import dispatch, slots

log = logging.getLogger(__name__)

MOST_CLAIMS = 3
"""After so many lost workers on one attempt, the attempt itself is the suspect."""
_UNCLAIMED = timedelta(seconds=30)
_GONE = timedelta(seconds=3)
"""The same when nothing waits on the broker: whoever took the message has died with it."""
_KEPT = timedelta(hours=1)


def run_pass() -> int:
    """One sweep. Returns how many runs it moved on."""
    moved = sum(
        _each(part(), change)
        for part, change in (
            (_past_deadline, end_at_deadline),
            (_cancelled, _end_cancelled),
            (_without_worker, _recover),
            (_unclaimed, attempts.withdraw_admission),
        )
    )
    lanes.place_strays()
    _close_reservations()
    holds.forget_ended()
    Outbox.objects.filter(sent_at__lt=Now() - _KEPT).delete()
    WorkerPresence.objects.filter(seen_at__lt=Now() - _KEPT).delete()
    return moved


def _each(found: Iterable[Run], change: Callable[[Run], bool]) -> int:
    moved = 0
    for run in found:
        try:
            moved += change(run)
        except runs.MovedOn:
            continue  # somebody was faster, which is as good
    return moved


def _past_deadline() -> Iterable[Run]:
    return Run.objects.filter(deadline_at__lte=Now()).exclude(status__in=TERMINAL)[:500]


def end_at_deadline(run: Run) -> bool:
    """End a run whose deadline has passed. Raises `MovedOn`."""
    with transaction.atomic():
        runs.move(
            run,
            RunStatus.BUDGET_EXHAUSTED,
            stop_reason=StopReason.DEADLINE,
            reason=_deadline_reason(run),
            actor="system",
            kind="deadline",
        )
        gates.withdraw(run.pk, EscalationStatus.EXPIRED)
    return True


def _deadline_reason(run: Run) -> str:
    if run.started_at is not None or run.deadline_at is None:
        return SENTENCES[StopReason.DEADLINE]
    waited = ExpressionWrapper(Now() - F("created_at"), output_field=DurationField())
    length = Run.objects.filter(pk=run.pk).values_list(waited, flat=True).get()
    minutes = int(length.total_seconds() // 60)
    return (
        f"The deadline has passed: it waited in queue {minutes} min and never started."
        " For a deadline waiting counts."
    )


def _cancelled() -> Iterable[Run]:
    return (
        Run.objects.filter(cancel_requested=True)
        .exclude(status__in=TERMINAL)
        .exclude(status=RunStatus.RUNNING, lease_expires_at__gt=Now())[:500]
    )


def _end_cancelled(run: Run) -> bool:
    with transaction.atomic():
        runs.end_cancelled(run, actor="system")
        gates.withdraw(run.pk)
    return True


def _leaseless() -> QuerySet[Run]:
    return Run.objects.select_related("task__project").filter(
        status=RunStatus.RUNNING, lease_expires_at__lte=Now(), cancel_requested=False
    )


def _without_worker() -> Iterable[Run]:
    return _leaseless()[:500]


def _recover(found: Run) -> bool:
    ledger.close_lost(found.pk, found.lease_token + 1)
    # Read again: closing has changed its version, and somebody may have been faster.
    run = _leaseless().filter(pk=found.pk, lease_token=found.lease_token).first()
    if run is None:
        return False
    attempt = Attempt.objects.get(run=run, no=run.attempt_no)
    if attempt.claims < MOST_CLAIMS:
        taken = attempts.take_back(run)
        reach("taken-back")
        return taken and _free(run)
    sentence = f"Its worker died {attempt.claims} times during attempt {attempt.no}."
    if run.task.on_limit == OnLimit.GATE:
        gates.park_without_worker(
            run,
            gates.Proposal(
                cause=StopReason.WORKER_LOST,
                reason=sentence,
                packet={"why": sentence, "cause": StopReason.WORKER_LOST, "attempt": attempt.no},
                allowed=(Decision.CONTINUE, Decision.CLOSE),
            ),
            reason=sentence,
        )
        return _free(run)
    with transaction.atomic():
        runs.move(
            run,
            RunStatus.FAILED,
            stop_reason=StopReason.WORKER_LOST,
            reason=sentence,
            actor="system",
            kind="worker_lost",
        )
    return _free(run)


def _free(run: Run) -> bool:
    """Its slots need not run out: the lease did."""
    try:
        profiles = {profile.name: profile for profile in AgentProfile.objects.all()}
        scopes = scopes_of(run, profiles)
        slots.release(slots.holder(run.pk, run.lease_token), scopes)
        slots.release(slots.admission(run.pk, run.lease_token - 1), scopes)
    except redis.RedisError as error:
        log.warning("slots of run %s not released, they will run out: %s", run.pk, error)
    return True


def _unclaimed() -> Iterable[Run]:
    """Admitted, published and not claimed; a message that is not on the broker is lost."""
    patience = _GONE if dispatch.nothing_published() else _UNCLAIMED
    fresh = Outbox.objects.filter(
        Q(sent_at__isnull=True) | Q(sent_at__gt=Now() - patience), run=OuterRef("pk")
    )
    return Run.objects.filter(
        ~Exists(fresh), status=RunStatus.QUEUED, admitted_at__lte=Now() - patience
    )[:500]


def _close_reservations() -> None:
    # A call of a run that has moved on still settles by itself when its worker lives.
    old = Now() - timedelta(seconds=2 * settings.LOOPWARDEN_LEASE_SECONDS)
    left = (
        Reservation.objects.filter(
            state__in=[ReservationState.RESERVED, ReservationState.IN_FLIGHT], created_at__lte=old
        )
        .exclude(run__status=RunStatus.RUNNING)
        .values_list("run", "run__lease_token")
        .distinct()[:500]
    )
    for run_id, token in list(left):
        # Who claims the run meanwhile has the next token: what that worker opens is not lost.
        ledger.close_lost(run_id, token + 1)
