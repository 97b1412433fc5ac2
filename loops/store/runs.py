"""Moves a run for reasons outside its attempts: a person, a deadline, the sweeper."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from loops import feed
from loops.core.errors import LoopwardenError
from loops.core.lifecycle import SENTENCES, TERMINAL, RunStatus, StopReason, check_move
from loops.models import Attempt, AttemptStatus, LimitGrant, Run
from loops.store import events
from loops.store.attempts import Claim

_FAR = 1_000_000


class MovedOn(LoopwardenError):
    """The run has moved on since. Look at it again."""


def move(
    run: Run,
    status: RunStatus,
    *,
    stop_reason: StopReason | None,
    reason: str,
    actor: str,
    kind: str,
    text: str = "",
    extra: dict[str, Any] | None = None,
) -> None:
    """Compare-and-set the run's status on its version. Raises `MovedOn` when it has changed.

    Call it inside a transaction. An attempt that is still open is abandoned with the move.
    """
    old = RunStatus(run.status)
    check_move(old, status)
    changes: dict[str, Any] = {
        "status": status,
        "stop_reason": stop_reason or "",
        "reason": reason,
        "version": F("version") + 1,
        "lease_expires_at": None,
        "attempt_deadline_at": None,
        "admitted_at": None,
        "updated_at": Now(),
        "ended_at": Now() if status in TERMINAL else None,
        **(extra or {}),
    }
    if not Run.objects.filter(pk=run.pk, status=old, version=run.version).update(**changes):
        raise MovedOn
    # Also of a queued run: an attempt that lost its worker is still open there.
    Attempt.objects.filter(run=run, status=AttemptStatus.RUNNING).update(
        status=AttemptStatus.ABANDONED, ended_at=Now(), error=reason
    )
    events.record(run.pk, kind, text or reason, actor=actor, gate=True, nudge=True)
    if old is RunStatus.RUNNING:
        feed.halt(run.pk)


def cancel(run: Run, *, actor: str) -> bool:
    """Stop the run: at once while nothing runs, else as soon as its worker hears of it.

    False when it has ended already: cancelling twice is no error. People cancel with
    `gates.cancel`, which takes the run's items out of the queue as well.
    """
    with transaction.atomic():
        run = Run.objects.select_for_update().get(pk=run.pk)
        if run.is_terminal or run.cancel_requested:
            return False
        if run.status == RunStatus.RUNNING:
            Run.objects.filter(pk=run.pk).update(
                cancel_requested=True, version=F("version") + 1, updated_at=Now()
            )
            events.record(run.pk, "cancel_requested", "cancel requested", actor=actor)
            feed.halt(run.pk)
            return True
        end_cancelled(run, actor=actor)
    return True


def end_cancelled(run: Run, *, actor: str) -> None:
    """Make a cancel final. Raises `MovedOn`. Call it inside a transaction."""
    move(
        run,
        RunStatus.CANCELLED,
        stop_reason=StopReason.CANCELLED_BY_PERSON,
        reason=SENTENCES[StopReason.CANCELLED_BY_PERSON],
        actor=actor,
        kind="cancelled",
    )


def grant(run: Run, amounts: dict[str, int], *, granted_by: Any) -> None:
    """Add a person's grant as a row of its own and to the run's caps (S1-9: never the loop's)."""
    LimitGrant.objects.create(run=run, granted_by=granted_by, **amounts)
    raised = {f"limit_{axis}": F(f"limit_{axis}") + amount for axis, amount in amounts.items()}
    Run.objects.filter(pk=run.pk).update(**raised)


def set_base(claim: Claim, commit: str, pack: str) -> None:
    """Note which commit the run started from, and the artifact that holds it, if it travels."""
    Run.objects.filter(pk=claim.run_id, lease_token=claim.token).update(
        base_commit=commit, base_pack=pack
    )


def fence_all() -> int:
    """After a restore: no worker of before may write. Returns how many runs have not ended.

    The backup is older than the last claims, so their tokens would be given out a second time.
    """
    open_runs = Run.objects.exclude(status__in=TERMINAL)
    return open_runs.update(lease_token=F("lease_token") + _FAR, version=F("version") + _FAR)
