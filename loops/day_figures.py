"""A project's day as people see it: its meters, and when what waits for it goes on."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from loops.core.lifecycle import RunStatus
from loops.core.money import dollars
from loops.figures import Meter
from loops.models import ProjectDay, Run
from loops.store import days

_TITLES = {"tokens": "Project's tokens today", "cost_microusd": "Project's cost today"}


def day_of(run: Run) -> ProjectDay | None:
    """The day that the run's next calls draw on; None where the project has no daily cap."""
    project = run.task.project
    goes_on = run.status in (RunStatus.QUEUED, RunStatus.RUNNING)
    if not goes_on or all(getattr(project, f"daily_{axis}") is None for axis in days.CAPPED):
        return None
    return days.current().select_related("project").filter(project=project).first()


def day_meters(day: ProjectDay) -> list[Meter]:
    """The axes with a cap."""
    return [
        Meter(
            axis=axis,
            title=title,
            used=getattr(day.used, axis),
            reserved=getattr(day.reserved, axis),
            cap=getattr(day, f"limit_{axis}"),
        )
        for axis, title in _TITLES.items()
        if getattr(day, f"limit_{axis}") is not None
    ]


def why_closed(day: ProjectDay) -> str:
    """What is used up, with all figures, and when it goes on."""
    return (
        f"The project's day is used up: {'; '.join(map(_figures, day_meters(day)))}."
        f" It goes on at {when(day)}, or when somebody grants more:"
        f" manage.py project grant {day.project.slug} --cost USD."
    )


def when(day: ProjectDay) -> str:
    """The next day's beginning on the project's own clock."""
    begins = day.ends_at.astimezone(ZoneInfo(day.project.time_zone))
    return f"{begins:%Y-%m-%d %H:%M} {day.project.time_zone}"


def _figures(meter: Meter) -> str:
    money = meter.axis == "cost_microusd"
    cap, used, reserved = (
        f"${dollars(value)}" if money else str(value)
        for value in (meter.cap or 0, meter.used, meter.reserved)
    )
    return f"{'cost' if money else 'tokens'} cap {cap}, used {used}, reserved {reserved}"
