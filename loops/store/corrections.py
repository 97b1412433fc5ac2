"""Corrects what a run was charged: by a row of its own, so that the wrong one can still be read."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import F

from loops.core.errors import LoopwardenError
from loops.models import Budget, Graph, ProjectDay, Reservation, ReservationState, Run
from loops.store import events


class CannotCorrect(LoopwardenError):
    """More is to be taken off than was charged."""


def correct_cost(run_id: int, microusd: int, *, reason: str, actor: str) -> int:
    """Add to what the run was charged, or take off, and return the new sum (RC073).

    What is added stands above the caps and never breaks them, so a correction always fits. The
    run's graph and the newest day that it was booked on are corrected with it.
    """
    with transaction.atomic():
        run = Run.objects.select_for_update().get(pk=run_id)
        corrected = run.used.cost_microusd + microusd
        if corrected < 0:
            raise CannotCorrect
        day_id = _newest_day(run)
        Reservation.objects.create(
            run=run,
            day_id=day_id,
            attempt_no=run.attempt_no,
            seq=0,
            token=0,
            state=ReservationState.SETTLED,
            actual_tokens=0,
            actual_cost_microusd=microusd,
        )
        changes = _changes(run, microusd)
        Run.objects.filter(pk=run_id).update(**changes, version=F("version") + 1)
        # After the run's row, as every reservation takes them: the other order could deadlock.
        if run.graph_id is not None:
            graph = Graph.objects.select_for_update(no_key=True).get(pk=run.graph_id)
            Graph.objects.filter(pk=graph.pk).update(**_changes(graph, microusd))
        if day_id is not None:
            day = ProjectDay.objects.select_for_update(no_key=True).get(pk=day_id)
            # Of charges on several days the others keep theirs: they are over.
            on_day = max(microusd, -day.used.cost_microusd)
            ProjectDay.objects.filter(pk=day_id).update(**_changes(day, on_day), closed=False)
        data = {"microusd": microusd}
        events.record(run_id, "corrected", f"cost corrected: {reason}", actor=actor, data=data)
    return corrected


def _newest_day(run: Run) -> int | None:
    booked = run.reservations.filter(day__isnull=False).order_by("-pk")
    return booked.values_list("day", flat=True).first()


def _changes(row: Budget, microusd: int) -> dict[str, Any]:
    above = max(microusd, -row.overrun_cost_microusd)
    return {
        "overrun_cost_microusd": F("overrun_cost_microusd") + above,
        "used_cost_microusd": F("used_cost_microusd") + microusd - above,
    }
