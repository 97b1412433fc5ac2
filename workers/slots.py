"""Concurrency slots: a run's next attempt goes to the broker only when all of its slots are free.

Scopes are the whole pool, the project, and each agent profile that the task names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from loops import feed
from loops.core.lifecycle import RunStatus
from loops.models import AgentProfile, Run

_SCRIPT = Path(__file__).with_name("slots.lua").read_text()
_EPOCH = "loopwarden:slots:epoch"
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


def _run(command: str, run_id: int, scopes: list[Scope], *args: int) -> int:
    keys = [_EPOCH, *(f"loopwarden:slots:{scope.name}" for scope in scopes)]
    return int(feed.client().register_script(_SCRIPT)(keys=keys, args=[command, run_id, *args]))


def acquire(run: Run, scopes: list[Scope]) -> Scope | None:
    """Take all slots or none. Returns the scope that is full, or None when granted."""
    limits = [scope.limit for scope in scopes]
    answer = _run("acquire", run.pk, scopes, _ttl(), *limits)
    if answer == _LOST:
        rebuild()
        answer = _run("acquire", run.pk, scopes, _ttl(), *limits)
    return scopes[answer - 1] if answer > 0 else None


def renew(run_id: int, scopes: list[Scope]) -> None:
    """Keep the slots while the work goes on."""
    _run("renew", run_id, scopes, _ttl())


def release(run_id: int, scopes: list[Scope]) -> None:
    """Give the slots back."""
    _run("release", run_id, scopes)


def rebuild() -> None:
    """After a loss: put every holder back before anybody new is admitted.

    The database knows all holders: runs that were admitted and runs that work. Without this, old
    holders and new ones would together be above the limit.
    """
    profiles = {profile.name: profile for profile in AgentProfile.objects.all()}
    holders = Run.objects.select_related("task__project").filter(
        status__in=[RunStatus.QUEUED, RunStatus.RUNNING], admitted_at__isnull=False
    )
    for run in holders.iterator():
        _run("restore", run.pk, scopes_of(run, profiles), _ttl())
    feed.client().set(_EPOCH, "1")


def _ttl() -> int:
    # Longer than the lease: a slot must never be free while its holder may still work.
    return int(settings.LOOPWARDEN_LEASE_SECONDS) * 2
