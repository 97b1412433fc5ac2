"""What the API says of graphs."""

from __future__ import annotations

from typing import Any

from django.urls import reverse

from dashboard.api.shapes import meter_shape, when
from dashboard.queues import open_items
from loops import figures
from loops.graph_figures import effective_status, graph_sentence, graph_words
from loops.models import Graph, GraphNode, Run


def graph_head(graph: Graph) -> dict[str, Any]:
    """A graph without its parts."""
    successor = getattr(graph, "successor", None)
    status, outcome = effective_status(graph)
    return {
        "id": graph.pk,
        "key": graph.key,
        "project": graph.project.slug,
        "title": graph.title,
        "aim": graph.aim,
        "mode": graph.mode,
        "governor": graph.governor or None,
        "status": status.value,
        "outcome": outcome or None,
        "words": graph_words(graph)[0],
        "reason": graph_sentence(graph),
        "meters": [meter_shape(meter) for meter in figures.meters(graph)],
        "cancel_requested": graph.cancel_requested,
        "successor_of": graph.successor_of_id,
        "successor": successor.pk if successor else None,
        "final_aim": successor.aim if successor else graph.aim,
        "event_seq": graph.event_seq,
        "deadline_at": when(graph.deadline_at),
        "created_at": when(graph.created_at),
        "updated_at": when(graph.updated_at),
        "ended_at": when(graph.ended_at),
        "page": reverse("graph", args=[graph.pk]),
    }


def graph_shape(graph: Graph) -> dict[str, Any]:
    """A graph with its nodes, its edges and what waits for a person in it."""
    runs = {run.task_id: run for run in graph.runs.order_by("number")}
    items = open_items().filter(run__graph=graph).order_by("pk").values_list("pk", flat=True)
    edges = graph.edges.select_related("source", "target")
    return {
        **graph_head(graph),
        "nodes": [_node(node, runs) for node in graph.nodes.all()],
        "edges": [
            {"from": edge.source.name, "to": edge.target.name, "kind": edge.kind} for edge in edges
        ],
        "open_escalations": list(items),
    }


def _node(node: GraphNode, runs: dict[int, Run]) -> dict[str, Any]:
    run = runs.get(node.task_id) if node.task_id else None
    output = dict(node.output) if node.output else None
    if output is not None:
        output.pop("handoff", None)
    return {
        "name": node.name,
        "task": node.task_id,
        "run": run.pk if run else None,
        "status": figures.effective_status(run)[0].value if run else None,
        "signal": node.signal or None,
        "reason": node.reason,
        "output": output,
    }
