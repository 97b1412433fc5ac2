"""Puts runs into lanes, and counts whom the dispatcher has served."""

from __future__ import annotations

from django.db.models import F

from loops.core.lifecycle import RunStatus
from loops.models import Lane, Project, Run, Task

_BATCH = 500


def lane_of(task: Task) -> Lane:
    """The lane of a task's runs, made when it is the first of its kind."""
    agents = ",".join(sorted(set(task.agents.values())))
    lane, _ = Lane.objects.get_or_create(project_id=task.project_id, agents=agents)
    return lane


def place_strays() -> int:
    """The sweeper's: give runs that a worker of an older version stored their lane."""
    strays = Run.objects.filter(lane__isnull=True, status=RunStatus.QUEUED).select_related("task")
    found = list(strays[:_BATCH])
    for run in found:
        Run.objects.filter(pk=run.pk).update(lane=lane_of(run.task), priority=run.task.priority)
    return len(found)


def count_admission(run_id: int, *, turn: float, served: int) -> None:
    """Note that a run of its lane was admitted. Call it in the transaction that admits."""
    lane = Run.objects.filter(pk=run_id).values("lane")
    Lane.objects.filter(pk__in=lane).update(
        admissions=F("admissions") + 1, turn=turn, served=served
    )


def use_credit(project_id: int) -> None:
    """One admission that went first is used. Call it in the transaction that admits."""
    Project.objects.filter(pk=project_id, credit__gt=0).update(credit=F("credit") - 1)


def note_away(project: Project, *, admissions: int) -> None:
    """The project has no work any more. The first dispatcher that sees it notes it."""
    seen = Project.objects.filter(pk=project.pk, away_since__isnull=True)
    seen.update(away_since=admissions)


def note_back(project: Project, *, credit: int) -> None:
    """The project has work again, and this credit. The first dispatcher that sees it notes it."""
    seen = Project.objects.filter(pk=project.pk, away_since=project.away_since)
    seen.update(away_since=None, credit=credit)
