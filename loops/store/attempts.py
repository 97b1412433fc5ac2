"""Claim, keep and finish an attempt: compare-and-set on the run's row, fenced by its token."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, Max
from django.db.models.functions import Now

from loops.core.lifecycle import TERMINAL, RunStatus, StopReason, check_move
from loops.crashpoints import reach
from loops.models import Attempt, AttemptStatus, Outbox, Run, Step, StepKind, StepStatus
from loops.statements import as_json, execute, fetch
from loops.store import events, lanes


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to run one attempt, as long as its token is the run's newest."""

    run_id: int
    no: int
    token: int
    worker: str
    claims: int
    """How often this attempt was claimed so far, this time included."""
    asked_at: float = field(default_factory=time.monotonic)
    """When the claim was asked for, on this process' monotonic clock: the lease is no older."""
    seconds_left: float | None = None
    """From then until the run's deadline, by the database's clock; None without a deadline."""
    working_cap: int | None = None
    """How many seconds the run may work in all; None for any number."""
    worked_ms: int = 0
    """How long it had worked before."""


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """What an attempt came to, as values; `finish` makes them true."""

    status: RunStatus
    attempt_status: AttemptStatus
    stop_reason: StopReason | None = None
    reason: str = ""
    counted: bool = False
    errored: bool = False
    label: str = ""
    judgment: str = ""
    feedback: str | None = None
    """Goes to the next attempt."""
    shown: str = ""
    """Feedback of this attempt, for its line in the timeline."""
    error: str = ""
    state: dict[str, Any] | None = None
    tree: str = ""
    tree_after: str = ""
    pack: str = ""
    result: dict[str, Any] | None = None
    delay_seconds: float = 0
    active_ms: int = 0
    event: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Round:
    """What was done towards one judgment: an attempt, and those before it that only waited."""

    first: int
    """Number of the attempt that began it."""
    tree: str
    """Snapshot in its stored form from before its work; empty for the base commit."""


def round_of(run_id: int, no: int) -> Round:
    """The round that attempt `no` belongs to. An undo that a person ordered is not its work."""
    earlier = Attempt.objects.filter(run_id=run_id, no__lt=no)
    judged = earlier.exclude(judgment="").aggregate(no=Max("no"))["no"] or 0
    waited = earlier.filter(no__gt=judged, status=AttemptStatus.WAITED).order_by("no")
    first = waited.first() or Attempt.objects.get(run_id=run_id, no=no)
    undo = Step.objects.filter(
        run_id=run_id, attempt_no=first.no, seq=1, kind=StepKind.UNDO, status=StepStatus.DONE
    ).first()
    return Round(first=first.no, tree=undo.tree_after if undo else first.tree_before)


def claim(run_id: int, no: int, *, worker: str) -> Claim | None:
    """Take attempt `no` of the run, or None: a duplicate, stale or late message, or a held run."""
    params = {
        "run": run_id,
        "no": no,
        "worker": worker,
        "lease": settings.LOOPWARDEN_LEASE_SECONDS,
        "attempt": settings.LOOPWARDEN_ATTEMPT_SECONDS,
        "false": False,
    }
    asked_at = time.monotonic()
    with transaction.atomic():
        row = fetch("claim", params)
        if row is None:
            return None
        token, seq, left, working_cap, worked_ms = row
        tree = Run.objects.values_list("tree", flat=True).get(pk=run_id)
        opened = fetch("open_attempt", {**params, "token": token, "tree": tree})
        claims = opened[0] if opened else 1
        events.record(
            run_id,
            "claimed",
            f"attempt {no} claimed by {worker}",
            actor=worker,
            seq=seq,
            data={"no": no, "token": token, "claims": claims},
        )
        reach("claiming")
    return Claim(
        run_id=run_id,
        no=no,
        token=token,
        worker=worker,
        claims=claims,
        asked_at=asked_at,
        seconds_left=left,
        working_cap=working_cap,
        worked_ms=worked_ms,
    )


def ignore_delivery(run_id: int, no: int, *, worker: str) -> None:
    """Note a message that had nothing to do. A run that does not exist is no error either."""
    with transaction.atomic():
        if Run.objects.filter(pk=run_id).exists():
            events.record(
                run_id,
                "delivery_ignored",
                "duplicate delivery ignored",
                actor=worker,
                data={"no": no},
            )


def renew(claim: Claim) -> bool:
    """Keep the lease. False: cancelled, stopped, taken over or out of time; write nothing."""
    params = {
        "run": claim.run_id,
        "token": claim.token,
        "lease": settings.LOOPWARDEN_LEASE_SECONDS,
    }
    return execute("heartbeat", params) == 1


def finish(claim: Claim, conclusion: Conclusion) -> bool:
    """End the attempt and move the run on, in one transaction.

    False: somebody else has the run now, or it is cancelled or past its deadline. Nothing was
    written then. The next wake-up is not written here: the run must be admitted again first.
    """
    check_move(RunStatus.RUNNING, conclusion.status)
    with transaction.atomic():
        kept = apply(claim, conclusion)
        reach("finishing")
    return kept


def apply(claim: Claim, conclusion: Conclusion) -> bool:
    """`finish` inside the caller's transaction, for a gate that is opened with it."""
    row = fetch(
        "finish",
        {
            "run": claim.run_id,
            "token": claim.token,
            "no": claim.no,
            "status": conclusion.status.value,
            "stop_reason": conclusion.stop_reason.value if conclusion.stop_reason else "",
            "reason": conclusion.reason,
            "iterations": int(conclusion.counted),
            "errors": int(conclusion.errored),
            "active_ms": conclusion.active_ms,
            "delay": conclusion.delay_seconds,
            "state": as_json(conclusion.state),
            "feedback": conclusion.feedback,
            "tree": conclusion.tree,
            "result": as_json(conclusion.result),
            "ends": conclusion.status in TERMINAL,
        },
    )
    if row is None:
        return False
    execute(
        "close_attempt",
        {
            "run": claim.run_id,
            "no": claim.no,
            "token": claim.token,
            "attempt_status": conclusion.attempt_status.value,
            "counted": conclusion.counted,
            "label": conclusion.label,
            "judgment": conclusion.judgment,
            "shown": conclusion.shown,
            "error": conclusion.error,
            "tree_after": conclusion.tree_after,
            "pack": conclusion.pack,
        },
    )
    events.record(
        claim.run_id,
        "finished" if conclusion.status in TERMINAL else "judged",
        conclusion.event or conclusion.label or conclusion.status.value,
        actor=claim.worker,
        seq=row[0],
        data={"no": claim.no, **conclusion.data},
        gate=conclusion.status is RunStatus.AT_GATE,
    )
    return True


def hand_back(
    claim: Claim, *, why: str, delay_seconds: float = 0, kind: str = "handed_back"
) -> bool:
    """Give an unfinished attempt back: same number, next worker. It does not count as a crash.

    Its working time counts all the same.
    """
    worked = round((time.monotonic() - claim.asked_at) * 1000)
    with transaction.atomic():
        given = Run.objects.filter(
            pk=claim.run_id, lease_token=claim.token, status=RunStatus.RUNNING
        ).update(**_queued(delay_seconds), active_ms=F("active_ms") + worked)
        if given:
            Attempt.objects.filter(run_id=claim.run_id, no=claim.no).update(claims=F("claims") - 1)
            events.record(
                claim.run_id,
                kind,
                f"attempt {claim.no} handed back: {why}",
                actor=claim.worker,
            )
    return bool(given)


def take_back(run: Run) -> bool:
    """The sweeper's: the lease ran out, so the same attempt may be claimed again.

    It has worked until its last heartbeat, as far as anybody knows.
    """
    with transaction.atomic():
        taken = Run.objects.filter(
            pk=run.pk,
            lease_token=run.lease_token,
            status=RunStatus.RUNNING,
            lease_expires_at__lte=Now(),
        ).update(**_queued(0), active_ms=F("active_ms") + _worked_ms(run))
        if taken:
            events.record(
                run.pk,
                "lease_expired",
                f"attempt {run.attempt_no} lost its worker {run.lease_owner}",
                data={"no": run.attempt_no},
            )
    return bool(taken)


def _worked_ms(run: Run) -> int:
    if run.lease_expires_at is None or run.attempt_deadline_at is None:
        return 0
    claimed = run.attempt_deadline_at - timedelta(seconds=settings.LOOPWARDEN_ATTEMPT_SECONDS)
    heard = run.lease_expires_at - timedelta(seconds=settings.LOOPWARDEN_LEASE_SECONDS)
    return max(0, round((heard - claimed) / timedelta(milliseconds=1)))


def admit(
    run_id: int,
    no: int,
    *,
    turn: float | None = None,
    served: int = 0,
    credit_of: int | None = None,
) -> Outbox | None:
    """Grant a queued run its slots: write its wake-up. None when it is not waiting any more.

    `turn` and `served` are its lane's from now on, unless the admission is nobody's turn.
    `credit_of` is the project that uses one of its credit, if it has some.
    """
    with transaction.atomic():
        admitted = Run.objects.filter(
            pk=run_id, attempt_no=no, status=RunStatus.QUEUED, admitted_at__isnull=True
        ).update(admitted_at=Now(), version=F("version") + 1)
        if not admitted:
            return None
        if turn is not None:
            lanes.count_admission(run_id, turn=turn, served=served)
        if credit_of is not None:
            lanes.use_credit(credit_of)
        return Outbox.objects.create(run_id=run_id, attempt_no=no)


def withdraw_admission(run: Run) -> bool:
    """The sweeper's: the wake-up was written long ago and nobody claimed it, so it is lost."""
    return bool(
        Run.objects.filter(
            pk=run.pk, status=RunStatus.QUEUED, version=run.version, admitted_at__isnull=False
        ).update(admitted_at=None, version=F("version") + 1)
    )


def _queued(delay_seconds: float) -> dict[str, Any]:
    return {
        "status": RunStatus.QUEUED,
        "lease_expires_at": None,
        "attempt_deadline_at": None,
        "admitted_at": None,
        "next_at": Now() + timedelta(seconds=delay_seconds),
        "version": F("version") + 1,
    }
