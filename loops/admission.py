"""What a run's attempts share with others, who holds it now, and so what a run waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db.models import QuerySet

from loops import clock
from loops.core.lifecycle import RunStatus
from loops.day_figures import why_closed
from loops.figures import effective_status, waits_for_budget
from loops.models import AgentProfile, Project, ProjectDay, Run

POOL = "pool"


@dataclass(frozen=True, kw_only=True)
class Scope:
    """One concurrency limit."""

    name: str
    limit: int


def scopes_of(run: Run, profiles: Mapping[str, AgentProfile]) -> list[Scope]:
    """The limits that this run's attempts share with others. `run.task.project` is read."""
    return shared(run.task.project, run.task.agents.values(), profiles)


def shared(
    project: Project, agents: Iterable[str], profiles: Mapping[str, AgentProfile]
) -> list[Scope]:
    """The limits of the pool, of a project and of agent profiles, as far as they exist."""
    return [
        Scope(name=POOL, limit=settings.LOOPWARDEN_SLOTS),
        Scope(name=f"project:{project.pk}", limit=project.max_running),
        *(
            Scope(name=f"profile:{name}", limit=at_once(profiles[name]))
            for name in sorted(set(agents))
            if name in profiles
        ),
    ]


def at_once(profile: AgentProfile) -> int:
    """Its cap, and 1 after a rest until a call has succeeded: one run tries for all."""
    tripped = profile.strikes >= settings.LOOPWARDEN_BREAKER_STRIKES
    return min(1, profile.max_running) if tripped else profile.max_running


def rests(profile: AgentProfile, now: datetime | None = None) -> bool:
    """Whether its provider is left alone for now."""
    return profile.resting_until is not None and profile.resting_until > (now or clock.now())


def rest_in_words(profile: AgentProfile) -> str:
    """Until when it rests, and why."""
    until = profile.resting_until
    when = f"{until:%H:%M:%S} UTC" if until else "it is set again"
    return f"the agent {profile.name} rests until {when}, because its provider is overloaded"


def holding() -> QuerySet[Run]:
    """Runs that hold slots: admitted, and from then on until their attempt has ended."""
    return Run.objects.filter(admitted_at__isnull=False)


def held() -> Counter[str]:
    """How many runs hold each scope. Reads as many rows as there are slots."""
    counts: Counter[str] = Counter()
    for project, agents in holding().values_list("task__project", "task__agents"):
        counts.update([POOL, f"project:{project}"])
        counts.update(f"profile:{name}" for name in set(agents.values()))
    return counts


def why_waiting(run: Run, day: ProjectDay | None = None) -> str:
    """What keeps a queued run from its next attempt, in one sentence; empty for any other run.

    `day` is its project's, where that has caps. At most two queries; `run.task.project` is read.
    """
    if effective_status(run)[0] is not RunStatus.QUEUED or run.cancel_requested:
        return ""
    if day is not None and waits_for_budget(run):
        return why_closed(day)
    if run.admitted_at is not None:
        return "It waits for a worker."
    names = run.task.agents.values()
    profiles = {p.name: p for p in AgentProfile.objects.filter(name__in=names)}
    for profile in profiles.values():
        if rests(profile):
            return f"It waits: {rest_in_words(profile)}."
    if run.next_at > clock.now():
        return run.reason or f"It waits until {run.next_at:%H:%M:%S} UTC."
    return _full(run, profiles)


def _full(run: Run, profiles: Mapping[str, AgentProfile]) -> str:
    counts = held()
    for scope in reversed(scopes_of(run, profiles)):
        if counts[scope.name] >= scope.limit:
            used = f"{counts[scope.name]} of {scope.limit}"
            return f"It waits for a free slot: {_who(run, scope)} has {used} in use."
    return run.reason or "It waits for its turn: slots are free and handed out now."


def _who(run: Run, scope: Scope) -> str:
    kind, _, name = scope.name.partition(":")
    match kind:
        case "profile":
            return f"the agent {name}"
        case "project":
            return f"the project {run.task.project.name}"
    return "the whole pool"
