"""The history of a graph: one row for each change, written with it."""

from __future__ import annotations

from django.db.models import F
from django.db.models.functions import Now

from loops import feed
from loops.models import Graph, GraphEvent

SYSTEM = "system"


def record(
    graph_id: int, kind: str, text: str, *, actor: str = SYSTEM, nudge: bool = False
) -> None:
    """Add one event. Call it inside the transaction that makes the change."""
    Graph.objects.filter(pk=graph_id).update(event_seq=F("event_seq") + 1, updated_at=Now())
    seq = Graph.objects.values_list("event_seq", flat=True).get(pk=graph_id)
    GraphEvent.objects.create(graph_id=graph_id, seq=seq, kind=kind, text=text, actor=actor)
    feed.graph_changed(graph_id, seq, nudge=nudge)
