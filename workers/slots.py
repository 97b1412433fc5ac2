"""Concurrency slots: a run's next attempt goes to the broker only when all of its slots are free.

Scopes are the whole pool, the project, and each agent profile that the task names.
"""

from __future__ import annotations

import secrets
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from loops import feed
from loops.admission import Scope, scopes_of
from loops.core.lifecycle import TERMINAL, RunStatus
from loops.models import AgentProfile, Attempt, AttemptStatus, Run
from loops.store.attempts import Claim

_SCRIPT = Path(__file__).with_name("slots.lua").read_text()
_EPOCH = "loopwarden:slots:epoch"
_REBUILD = "loopwarden:slots:rebuild"
_LOST = -1


def admission(run_id: int, token: int) -> str:
    """Who holds the slots of a run that is admitted: its lease token is the one before its claim.

    It may vanish at any time, for whoever works takes slots of its own with `begin`.
    """
    return f"{run_id}:{token}"


def holder(run_id: int, token: int) -> str:
    """Who holds the slots of an attempt at work, by the token of its claim.

    Each claim has a token of its own, so whoever comes late frees its own slots, never those of
    the next attempt or of the next worker.
    """
    return f"{run_id}:{token}:work"


def acquire(run: Run, scopes: list[Scope]) -> Scope | None:
    """Take all slots or none for a waiting run. The scope that is full, or None when granted.

    An admission only: between here and the commit the sets may be lost, and whoever rebuilds them
    does not see it. So it is `begin` that the limits rest on.
    """
    return _take(admission(run.pk, run.lease_token), "", scopes)


def begin(claim: Claim, scopes: list[Scope]) -> Scope | None:
    """The last check before an attempt acts: the scope that is full, or None when it may.

    From here on nothing can exceed a limit: the database names this attempt as a holder already,
    so a loss of the sets after this call cannot hide it, and a loss before it is found here.
    """
    member = holder(claim.run_id, claim.token)
    full = _take(member, admission(claim.run_id, claim.token - 1), scopes)
    if full is not None:
        release(member, scopes)
    return full


def renew(member: str, scopes: list[Scope]) -> None:
    """Keep the slots while the work goes on."""
    _run("renew", member, scopes, _trust(), _ttl())


def release(member: str, scopes: list[Scope]) -> None:
    """Give the slots back."""
    _run("release", member, scopes)


def rebuild() -> None:
    """After a loss: put every holder back before anybody new is admitted.

    Without this, old holders and new ones would together be above the limit. The sets are trusted
    only if they were not lost again on the way. This stands in for a time in which nobody is
    admitted, because the database can name every attempt that may be at work.
    """
    nonce = secrets.token_hex(8)
    feed.client().set(_REBUILD, nonce, ex=60)
    profiles = {profile.name: profile for profile in AgentProfile.objects.all()}
    for run in _holders().iterator():
        queued = run.status == RunStatus.QUEUED
        member = (admission if queued else holder)(run.pk, run.lease_token)
        _run("restore", member, scopes_of(run, profiles), _ttl())
    script = feed.client().register_script(_SCRIPT)
    script(keys=[_EPOCH, _REBUILD], args=["trust", nonce, _trust()])


def _holders() -> QuerySet[Run]:
    admitted = Q(status__in=[RunStatus.QUEUED, RunStatus.RUNNING], admitted_at__isnull=False)
    # A deadline ends a run at once; its worker hears of it only with its next heartbeat.
    lately = Now() - timedelta(seconds=settings.LOOPWARDEN_LEASE_SECONDS)
    unheard = Attempt.objects.filter(
        run=OuterRef("pk"), status=AttemptStatus.ABANDONED, ended_at__gt=lately
    )
    return Run.objects.select_related("task__project").filter(
        admitted | Q(status__in=TERMINAL, ended_at__gt=lately) & Exists(unheard)
    )


def _take(member: str, before: str, scopes: list[Scope]) -> Scope | None:
    limits = [scope.limit for scope in scopes]
    answer = _run("acquire", member, scopes, before, _trust(), _ttl(), *limits)
    if answer == _LOST:
        rebuild()
        answer = _run("acquire", member, scopes, before, _trust(), _ttl(), *limits)
    if answer == _LOST:
        return scopes[0]  # lost again meanwhile: nobody goes on, the next pass rebuilds
    return scopes[answer - 1] if answer > 0 else None


def _run(command: str, member: str, scopes: list[Scope], *args: int | str) -> int:
    keys = [_EPOCH, *(f"loopwarden:slots:{scope.name}" for scope in scopes)]
    return int(feed.client().register_script(_SCRIPT)(keys=keys, args=[command, member, *args]))


def forget_all() -> None:
    """Drop all slots, so that the next admission rebuilds them from the database."""
    client = feed.client()
    for key in client.scan_iter("loopwarden:slots:*", count=1000):
        client.delete(key)


def _ttl() -> int:
    # Longer than the lease: a slot must never be free while its holder may still work.
    return int(settings.LOOPWARDEN_LEASE_SECONDS) * 2


def _trust() -> int:
    # Shorter than a slot's own time: a server that was away so long, or whose clock stepped, is
    # asked nothing before its sets are rebuilt, so no slot runs out behind a living holder.
    return int(settings.LOOPWARDEN_LEASE_SECONDS)
