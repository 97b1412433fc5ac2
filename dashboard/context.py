"""What the navigation shows: read only when a page draws it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import F, Func, IntegerField, QuerySet, Subquery
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from dashboard.queues import OF_STATUS, open_items
from loops.core.lifecycle import RunStatus
from loops.models import EVERYTHING, SWITCH, Hold, Run, WorkerPresence

ALIVE = timedelta(seconds=30)
MOST_COUNTED = 1000


@dataclass(frozen=True, kw_only=True)
class Nav:
    """The figures of the navigation."""

    waiting: int
    """Open items of the gate."""
    workers: int
    queued: int
    halted: str
    """That everything is paused or stopped, and by whom; empty while work goes on."""
    no_sandbox: str
    """How a worker without a sandbox describes itself; empty when all have one."""

    @property
    def line(self) -> str:
        """Workers and queue in a few words."""
        if not self.workers:
            return f"no worker, {self._queued()} queued"
        return f"{self.workers} worker{'s' * (self.workers != 1)}, {self._queued()} queued"

    def _queued(self) -> str:
        return f"{MOST_COUNTED}+" if self.queued > MOST_COUNTED else str(self.queued)


def read_nav(user: User | AnonymousUser) -> Nav:
    """Two short queries. The first is one row: the user's, with all that is counted beside it."""
    queued = Run.objects.filter(OF_STATUS[RunStatus.QUEUED])[: MOST_COUNTED + 1]
    rows = User.objects.filter(username=user.get_username()).values_list(
        _count(open_items()),
        _count(Run.objects.filter(pk__in=queued.values("pk"))),
        _actor(SWITCH),
        _actor(EVERYTHING),
    )
    waiting, waits, stopped_by, paused_by = rows[0]
    did, actor = ("stopped", stopped_by) if stopped_by else ("paused", paused_by)
    alive = WorkerPresence.objects.filter(kind="worker", seen_at__gte=Now() - ALIVE)
    sandboxes = list(alive.values_list("sandbox", flat=True))
    return Nav(
        waiting=waiting,
        workers=len(sandboxes),
        queued=waits,
        halted=f"Everything is {did} by {actor}." if actor else "",
        no_sandbox=next((label for label in sandboxes if label.startswith("no sandbox")), ""),
    )


def _count(found: QuerySet[Any]) -> Subquery:
    counted = found.order_by().annotate(n=Func(F("pk"), function="COUNT"))
    return Subquery(counted.values("n"), output_field=IntegerField())


def _actor(target: str) -> Subquery:
    return Subquery(Hold.objects.filter(pk=target).values("actor"))


def nav(request: HttpRequest) -> dict[str, Any]:
    """Template context processor."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return {}
    return {"nav": SimpleLazyObject(lambda: read_nav(user))}
