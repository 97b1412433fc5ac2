"""Pause and resume of a run, a project or everything, and the kill switch. Flags, never a status.

A request carries an id: sent twice it has one effect and leaves one record. The effect of a hold is
in the statements: `waiting`, `claim`, and for the switch also `heartbeat`, `reserve` and `send`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet

from loops import feed
from loops.core.errors import LoopwardenError
from loops.core.lifecycle import TERMINAL, RunStatus
from loops.models import (
    EVERYTHING,
    SWITCH,
    Hold,
    HoldRequest,
    HoldVerb,
    Outbox,
    Project,
    Run,
)
from loops.store import events


class RequestReused(LoopwardenError):
    """This request id stands for another request already."""


class AlreadyEnded(LoopwardenError):
    """The run has ended: there is nothing to pause."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is held."""

    run: Run | None = None
    project: Project | None = None
    switch: bool = False

    @property
    def key(self) -> str:
        """Its name in the tables."""
        if self.run is not None:
            return f"run:{self.run.pk}"
        if self.project is not None:
            return f"project:{self.project.pk}"
        return SWITCH if self.switch else EVERYTHING

    @property
    def runs(self) -> Q:
        """The runs that it holds."""
        if self.run is not None:
            return Q(pk=self.run.pk)
        return Q(task__project=self.project) if self.project is not None else Q()


@dataclass(frozen=True, kw_only=True)
class Request:
    """Who asks, why, and the id that makes sending it again harmless."""

    actor: str
    why: str = ""
    request_id: str = field(default_factory=lambda: secrets.token_urlsafe(16))


def hold(target: Target, request: Request) -> list[Run] | None:
    """Let nothing of the target start any more. What runs finishes; under the switch it stops.

    Returns the runs whose admission was taken back: they hold slots that nobody needs now. None:
    this request came before. Raises `RequestReused`, and `AlreadyEnded` for a run that is over.
    """
    with transaction.atomic():
        if not _is_new(target, request, HoldVerb.HOLD):
            return None
        if target.run is not None:
            _refuse_ended(target.run)
        facts = {"request_id": request.request_id, "actor": request.actor, "why": request.why}
        Hold.objects.filter(pk=target.key).delete()
        Hold.objects.create(target=target.key, run=target.run, project=target.project, **facts)
        _tell(target, request, HoldVerb.HOLD)
        return withdraw(Run.objects.filter(target.runs))


def lift(target: Target, request: Request, *, seen: str = "") -> bool:
    """Let the target go on. False: it was not held, or `seen` is not the hold that stands now.

    `seen` is the request id of the hold that the caller looked at: a late resume never takes back
    a pause that came after it.
    """
    with transaction.atomic():
        if not _is_new(target, request, HoldVerb.LIFT):
            return HoldRequest.objects.get(request_id=request.request_id).changed
        standing = Hold.objects.filter(pk=target.key)
        if seen:
            standing = standing.filter(request_id=seen)
        lifted = bool(standing.delete()[0])
        HoldRequest.objects.filter(request_id=request.request_id).update(changed=lifted)
        if lifted:
            _tell(target, request, HoldVerb.LIFT)
    return lifted


def withdraw(found: QuerySet[Run]) -> list[Run]:
    """Take back admissions that no worker has claimed. Returns their runs as they were."""
    waiting = found.filter(status=RunStatus.QUEUED, admitted_at__isnull=False)
    taken = []
    for run in waiting.select_related("task__project").order_by("pk"):
        same = Run.objects.filter(pk=run.pk, status=RunStatus.QUEUED, version=run.version)
        if same.update(admitted_at=None, version=F("version") + 1):
            Outbox.objects.filter(run=run, sent_at__isnull=True).delete()
            taken.append(run)
    return taken


def held() -> Exists:
    """In a query of runs: whether something holds the run."""
    return Exists(
        Hold.objects.filter(
            Q(target__in=[EVERYTHING, SWITCH])
            | Q(run=OuterRef("pk"))
            | Q(project=OuterRef("task__project"))
        )
    )


def is_stopped() -> bool:
    """Whether the kill switch is on."""
    return Hold.objects.filter(pk=SWITCH).exists()


def of_runs(runs: Iterable[Run]) -> dict[int, list[Hold]]:
    """What holds each of these runs, the widest first. `run.task` is read."""
    shown = [run for run in runs if not run.is_terminal]
    projects = {run.task.project_id for run in shown}
    found = Hold.objects.filter(
        Q(target__in=[EVERYTHING, SWITCH]) | Q(project__in=projects) | Q(run__in=shown)
    )
    holds = sorted(found, key=lambda one: (bool(one.run_id), bool(one.project_id), one.target))
    return {run.pk: [one for one in holds if _covers(one, run)] for run in shown}


def forget_ended() -> int:
    """The sweeper's: an ended run needs no hold."""
    return Hold.objects.filter(run__status__in=TERMINAL).delete()[0]


def _covers(one: Hold, run: Run) -> bool:
    if one.run_id is None and one.project_id is None:
        return True
    return one.run_id == run.pk or one.project_id == run.task.project_id


def _is_new(target: Target, request: Request, verb: HoldVerb) -> bool:
    """Write the request down. False: this very request was carried out before."""
    known, is_new = HoldRequest.objects.get_or_create(
        request_id=request.request_id,
        defaults={
            "target": target.key,
            "verb": verb,
            "changed": True,
            "actor": request.actor,
            "why": request.why,
        },
    )
    if (known.target, known.verb) != (target.key, verb):
        raise RequestReused(
            f"the request id {request.request_id} stands for {known.verb} {known.target} already;"
            " send another one"
        )
    return is_new


def _refuse_ended(run: Run) -> None:
    # Under the row's lock: a run that ends meanwhile is either seen here or ends held.
    if Run.objects.select_for_update().get(pk=run.pk).is_terminal:
        raise AlreadyEnded


def _tell(target: Target, request: Request, verb: HoldVerb) -> None:
    """The event of a run, a hint for the pages, and word to the workers where they must stop."""
    if target.run is not None:
        did = "paused it" if verb is HoldVerb.HOLD else "resumed it"
        why = f": {request.why}" if request.why else ""
        kind = "paused" if verb is HoldVerb.HOLD else "resumed"
        events.record(target.run.pk, kind, f"{did}{why}", actor=request.actor, nudge=True)
    else:
        feed.operations_changed()
    if target.switch and verb is HoldVerb.HOLD:
        feed.halt(feed.EVERY_RUN)
