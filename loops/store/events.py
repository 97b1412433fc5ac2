"""Writes the history of a run."""

from __future__ import annotations

from typing import Any

from django.db.models import F

from loops import feed
from loops.models import Run
from loops.statements import as_json, execute

SYSTEM = "system"


def record(
    run_id: int,
    kind: str,
    text: str,
    *,
    actor: str = SYSTEM,
    seq: int | None = None,
    data: dict[str, Any] | None = None,
    gate: bool = False,
    nudge: bool = False,
) -> None:
    """Add one event. Call it inside the transaction that makes the change.

    Pass `seq` when the change itself has already counted `event_seq` up.
    """
    if seq is None:
        Run.objects.filter(pk=run_id).update(event_seq=F("event_seq") + 1)
        seq = Run.objects.values_list("event_seq", flat=True).get(pk=run_id)
    execute(
        "add_event",
        {
            "run": run_id,
            "seq": seq,
            "kind": kind,
            "text": text,
            "data": as_json(data or {}),
            "actor": actor,
        },
    )
    feed.changed(run_id, seq, gate=gate, nudge=nudge)
