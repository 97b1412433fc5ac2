"""May a project whose day is used up spend more today? One person is asked, once.

The question stands at the gate with the oldest run that waits for the day; all others wait queued.
Nobody has to answer: the next day, or a grant at the command line, takes the question back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from django.db import transaction
from django.db.models import Q

from loops import gates
from loops.core.lifecycle import StopReason
from loops.day_figures import day_meters, why_closed
from loops.models import Decision, Escalation, EscalationStatus, ProjectDay, Run
from loops.store import days
from loops.store.runs import MovedOn
from workers.dispatch import startable

T = TypeVar("T")


def run_pass() -> int:
    """Take back questions that nobody needs any more, ask new ones. Returns how many."""
    return _each(_settled(), gates.take_back) + _each(_unasked(), _ask)


def _each(found: Iterable[T], change: Callable[[T], bool]) -> int:
    done = 0
    for one in found:
        try:
            done += change(one)
        except MovedOn:
            continue  # somebody was faster, which is as good
    return done


def _settled() -> list[Escalation]:
    closed = set(days.used_up().values_list("pk", flat=True))
    asked = Escalation.objects.filter(cause=StopReason.PROJECT_DAY, status=EscalationStatus.OPEN)
    return [item for item in asked if item.packet["raises_day"]["day"] not in closed]


def _unasked() -> list[ProjectDay]:
    return [day for day in days.used_up().select_related("project") if not _was_asked(day)]


def _was_asked(day: ProjectDay) -> bool:
    """Whether the question stands, or was answered with no."""
    said_no = Q(decision=Decision.REJECT, packet__raises_day__day=day.pk)
    asked = Escalation.objects.filter(
        cause=StopReason.PROJECT_DAY, run__task__project=day.project_id
    )
    return asked.filter(Q(status=EscalationStatus.OPEN) | said_no).exists()


def _ask(day: ProjectDay) -> bool:
    waiting = startable().filter(task__project=day.project_id).order_by("id")
    with transaction.atomic():
        run = waiting.select_for_update(of=("self",)).first()
        # Run before day, as every call locks them. The day's lock lets one tender ask.
        ProjectDay.objects.select_for_update(no_key=True).get(pk=day.pk)
        still = days.used_up().filter(pk=day.pk).select_related("project").first()
        if run is None or still is None or _was_asked(still):
            return False
        gates.park_without_worker(run, _question(run, still), reason=why_closed(still))
    return True


def _question(run: Run, day: ProjectDay) -> gates.Proposal:
    caps = {axis: getattr(day.project, f"daily_{axis}") for axis in days.CAPPED}
    packet: dict[str, Any] = {
        "why": why_closed(day),
        "cause": StopReason.PROJECT_DAY,
        "attempt": run.attempt_no,
        "raises_day": {"day": day.pk, **{axis: cap for axis, cap in caps.items() if cap}},
        "day": {
            meter.axis: {"used": meter.used, "reserved": meter.reserved, "cap": meter.cap}
            for meter in day_meters(day)
        },
    }
    return gates.Proposal(
        cause=StopReason.PROJECT_DAY,
        reason=packet["why"],
        packet=packet,
        allowed=(Decision.APPROVE, Decision.REJECT),
    )
