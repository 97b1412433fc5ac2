"""Who may hold what, and what is held, in words: the same for pages and API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.core.exceptions import PermissionDenied

from loops.models import EVERYTHING, SWITCH, Hold, Project, Run
from loops.store.holds import Target

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User

DEADLINE_RUNS = "Its deadline still runs."


def allow(user: User | AnonymousUser, target: Target) -> None:
    """Raise `PermissionDenied` unless the person may: what is everybody's is for administrators."""
    if target.run is None and target.project is None and not user.is_superuser:
        raise PermissionDenied("Only an administrator can pause or stop everything.")


def read_target(key: str) -> Target | None:
    """The target of a form: `run:7`, `project:3`, `all` or `switch`."""
    kind, _, number = key.partition(":")
    if key in (EVERYTHING, SWITCH):
        return Target(switch=key == SWITCH)
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        return None
    if kind == "run":
        run = Run.objects.select_related("task__project").filter(pk=int(number)).first()
        return Target(run=run) if run else None
    project = Project.objects.filter(pk=int(number)).first() if kind == "project" else None
    return Target(project=project) if project else None


def sentence(held: Sequence[Hold], run: Run) -> str:
    """Why the run does not go on, and what does; empty while nothing holds it."""
    if not held:
        return ""
    one = held[0]
    what = {EVERYTHING: "Everything is paused", SWITCH: "Everything is stopped"}.get(one.target)
    what = what or ("It is paused" if one.run_id else "Its project is paused")
    why = f": {one.why.rstrip('.')}." if one.why else "."
    clock = f" {DEADLINE_RUNS}" if run.deadline_at else ""
    return f"{what} by {one.actor}{why}{clock}"
