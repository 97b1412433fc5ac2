"""Concurrency slots: a run's next attempt goes to the broker only when all of its slots are free.

Scopes are the whole pool, the project, and each agent profile that the task names.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from loops import feed
from loops.core.lifecycle import RunStatus
from loops.models import AgentProfile, Run

_SCRIPT = Path(__file__).with_name("slots.lua").read_text()
_EPOCH = "loopwarden:slots:epoch"
_REBUILD = "loopwarden:slots:rebuild"
_LOST = -1


@dataclass(frozen=True, kw_only=True)
class Scope:
    """One concurrency limit."""

    name: str
    limit: int


def scopes_of(run: Run, profiles: dict[str, AgentProfile]) -> list[Scope]:
    """The limits that this run's attempts share with others. `run.task.project` is read."""
    project = run.task.project
    agents = sorted({name for name in run.task.agents.values() if name in profiles})
    return [
        Scope(name="pool", limit=settings.LOOPWARDEN_SLOTS),
        Scope(name=f"project:{project.pk}", limit=project.max_running),
        *(Scope(name=f"profile:{name}", limit=profiles[name].max_running) for name in agents),
    ]


def holder(run_id: int, token: int) -> str:
    """Who holds slots: one admission of a run, by the lease token that the run had before it.

    Each claim has a token of its own, so whoever comes late frees its own slots, never those of
    the next attempt or of the next worker.
    """
    return f"{run_id}:{token}"


def _run(command: str, member: str, scopes: list[Scope], *args: int) -> int:
    keys = [_EPOCH, *(f"loopwarden:slots:{scope.name}" for scope in scopes)]
    return int(feed.client().register_script(_SCRIPT)(keys=keys, args=[command, member, *args]))


def acquire(run: Run, scopes: list[Scope]) -> Scope | None:
    """Take all slots or none. Returns the scope that is full, or None when granted."""
    member, limits = holder(run.pk, run.lease_token), [scope.limit for scope in scopes]
    answer = _run("acquire", member, scopes, _ttl(), *limits)
    if answer == _LOST:
        rebuild()
        answer = _run("acquire", member, scopes, _ttl(), *limits)
    if answer == _LOST:
        return scopes[0]  # lost again meanwhile: nobody is admitted, the next pass rebuilds
    return scopes[answer - 1] if answer > 0 else None


def renew(member: str, scopes: list[Scope]) -> None:
    """Keep the slots while the work goes on."""
    _run("renew", member, scopes, _ttl())


def release(member: str, scopes: list[Scope]) -> None:
    """Give the slots back."""
    _run("release", member, scopes)


def rebuild() -> None:
    """After a loss: put every holder back before anybody new is admitted.

    The database knows all holders: runs that were admitted and runs that work. Without this, old
    holders and new ones would together be above the limit. The sets are trusted only if they were
    not lost again on the way.
    """
    nonce = secrets.token_hex(8)
    feed.client().set(_REBUILD, nonce, ex=60)
    profiles = {profile.name: profile for profile in AgentProfile.objects.all()}
    holders = Run.objects.select_related("task__project").filter(
        status__in=[RunStatus.QUEUED, RunStatus.RUNNING], admitted_at__isnull=False
    )
    for run in holders.iterator():
        token = run.lease_token - (run.status == RunStatus.RUNNING)
        _run("restore", holder(run.pk, token), scopes_of(run, profiles), _ttl())
    feed.client().register_script(_SCRIPT)(keys=[_EPOCH, _REBUILD], args=["trust", nonce])


def forget_all() -> None:
    """Drop all slots, so that the next admission rebuilds them from the database."""
    client = feed.client()
    for key in client.scan_iter("loopwarden:slots:*", count=1000):
        client.delete(key)


def _ttl() -> int:
    # Longer than the lease: a slot must never be free while its holder may still work.
    return int(settings.LOOPWARDEN_LEASE_SECONDS) * 2
