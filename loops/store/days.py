"""The days of a project: opened when the first call of a day is reserved, closed when used up."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from loops.core.days import local_day
from loops.core.errors import LimitReached
from loops.core.limits import Amount
from loops.models import DayGrant, Project, ProjectDay, Run

if TYPE_CHECKING:
    from django.contrib.auth.models import User

CAPPED = ("tokens", "cost_microusd")
"""What a project's day may have caps on."""


def current() -> QuerySet[ProjectDay]:
    """The days that go on now, of all projects that have spent something."""
    return ProjectDay.objects.filter(starts_at__lte=Now(), ends_at__gt=Now())


def used_up() -> QuerySet[ProjectDay]:
    """The days on which nothing more is admitted, until they end or somebody grants more.

    No new attempt of their projects may start: `.exclude(task__project__in=...)` with
    `.values("project")` of this.
    """
    spent = Q(closed=True)
    for axis in CAPPED:
        spent |= Q(**{f"limit_{axis}__lte": F(f"used_{axis}") + F(f"overrun_{axis}")})
    return current().filter(spent)


def marked(runs: QuerySet[Run]) -> QuerySet[Run]:
    """The runs, each with `day_used_up`, without a query more."""
    mark = {"day_used_up": Exists(used_up().filter(project=OuterRef("task__project")))}
    return runs.annotate(**mark)


def today(project_id: int) -> ProjectDay:
    """The project's current day, opened when there is none."""
    return current().filter(project_id=project_id).first() or _open(project_id)


def close(day: ProjectDay, refusal: LimitReached) -> bool:
    """Nothing more today: a call did not fit beside what is used. False: it does by now."""
    axis = _column(refusal)
    full = {f"limit_{axis}__lt": F(f"used_{axis}") + F(f"overrun_{axis}") + refusal.asked}
    return bool(ProjectDay.objects.filter(pk=day.pk, **full).update(closed=True))


def why_closed(day: ProjectDay, asked: Amount) -> LimitReached:
    """The refusal of a call that would fit, on the axis that is used most."""
    capped = [axis for axis in CAPPED if getattr(day, f"limit_{axis}") is not None]
    axis = max(capped, key=lambda one: getattr(day.used, one) / max(1, getattr(day.limits, one)))
    return LimitReached(
        axis.removesuffix("_microusd"),
        used=getattr(day.used, axis),
        reserved=getattr(day.reserved, axis),
        asked=getattr(asked, axis),
        cap=getattr(day.limits, axis),
        owner="project-day",
    )


def grant(day: ProjectDay, *, tokens: int, microusd: int, user: User | None, actor: str) -> None:
    """Add a person's grant to the day as a row of its own, and open the day again.

    An axis without a cap stays without one.
    """
    with transaction.atomic():
        DayGrant.objects.create(
            day=day, tokens=tokens, cost_microusd=microusd, granted_by=user, actor=actor
        )
        ProjectDay.objects.filter(pk=day.pk).update(
            limit_tokens=F("limit_tokens") + tokens,
            limit_cost_microusd=F("limit_cost_microusd") + microusd,
            closed=False,
        )


def configure(project: Project, **facts: Any) -> ProjectDay:
    """Change daily caps or the time zone, for the current day too; what was granted stays.

    A cap below what is used already closes the day. Returns the day as it is now.
    """
    with transaction.atomic():
        Project.objects.filter(pk=project.pk).update(**facts)
        day = ProjectDay.objects.select_for_update(no_key=True).get(pk=_open(project.pk).pk)
        project.refresh_from_db()
        day.closed = False
        for axis in CAPPED:
            _set_cap(day, axis, getattr(project, f"daily_{axis}"))
        day.save(update_fields=["closed", *(f"limit_{axis}" for axis in CAPPED)])
    return day


def _set_cap(day: ProjectDay, axis: str, cap: int | None) -> None:
    if cap is not None:
        cap += sum(day.grants.values_list(axis, flat=True))
        held = getattr(day, f"used_{axis}") + getattr(day, f"reserved_{axis}")
        # The check behind the row does not let a limit fall below what it holds.
        day.closed, cap = day.closed or cap < held, max(cap, held)
    setattr(day, f"limit_{axis}", cap)


def _open(project_id: int) -> ProjectDay:
    """The row of the date that it is now in the project's time zone."""
    with transaction.atomic():
        # The lock keeps the caps as they are read here until the row has them.
        locked = Project.objects.select_for_update(no_key=True)
        project = locked.annotate(now=Now()).get(pk=project_id)
        now: datetime = project.now
        day = local_day(now, project.time_zone)
        # Only a change of the time zone leaves another date open.
        others = current().filter(project=project).exclude(date=day.date)
        others.update(ends_at=now)
        span = {"starts_at": day.starts_at, "ends_at": day.ends_at}
        caps = {f"limit_{axis}": getattr(project, f"daily_{axis}") for axis in CAPPED}
        opened, _ = ProjectDay.objects.update_or_create(
            project=project, date=day.date, defaults=span, create_defaults={**span, **caps}
        )
    return opened


def _column(refusal: LimitReached) -> str:
    return {"cost": "cost_microusd"}.get(refusal.axis, refusal.axis)
