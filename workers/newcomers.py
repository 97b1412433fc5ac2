"""Credit: a project that had no work goes first for a while when it has some again.

Without it a small project would wait twice as long as alone, and then for the first free slot. A
new project gets as much as fills its share of the pool `ROUNDS` times. Later it earns one admission
for `EARNED_BY` that others had while it was away, so coming and going moves no share by more.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from django.conf import settings

from loops.models import Project
from loops.store import lanes

ROUNDS = 3
EARNED_BY = 8


def credits_of(projects: Iterable[Project], busy: Set[int], admissions: int) -> dict[int, int]:
    """Each project's credit. Notes who of them came back or went away since the last pass.

    `busy` are those with runs that wait or hold slots, `admissions` how many there were in all.
    """
    found: dict[int, int] = {}
    for project in projects:
        if project.pk in found:
            continue
        found[project.pk] = project.credit
        if project.pk not in busy:
            if project.away_since is None:
                lanes.note_away(project, admissions=admissions)
        elif project.away_since is not None:
            found[project.pk] = _welcome(project, project.away_since, admissions)
            lanes.note_back(project, credit=found[project.pk])
    return found


def _welcome(project: Project, away_since: int, admissions: int) -> int:
    most = ROUNDS * min(settings.LOOPWARDEN_SLOTS, project.max_running)
    earned = (admissions - away_since) // EARNED_BY if away_since else most
    return min(most, project.credit + max(0, earned))
