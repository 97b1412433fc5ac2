"""Corrects what a run was charged: by a row of its own, so that the wrong one can still be read."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import F

from loops.core.errors import LoopwardenError
from loops.models import Graph, Reservation, ReservationState, Run
from loops.store import events


class CannotCorrect(LoopwardenError):
    """More is to be taken off than was charged."""


def correct_cost(run_id: int, microusd: int, *, reason: str, actor: str) -> int:
    """Add to what the run was charged, or take off, and return the new sum (RC073).

    What is added stands above the caps and never breaks them, so a correction always fits.
    """
    with transaction.atomic():
        run = Run.objects.select_for_update().get(pk=run_id)
        corrected = run.used.cost_microusd + microusd
        if corrected < 0:
            raise CannotCorrect
        Reservation.objects.create(
            run=run,
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
        data = {"microusd": microusd}
        events.record(run_id, "corrected", f"cost corrected: {reason}", actor=actor, data=data)
    return corrected


def _changes(row: Run | Graph, microusd: int) -> dict[str, Any]:
    above = max(microusd, -row.overrun_cost_microusd)
    return {
        "overrun_cost_microusd": F("overrun_cost_microusd") + above,
        "used_cost_microusd": F("used_cost_microusd") + microusd - above,
    }
