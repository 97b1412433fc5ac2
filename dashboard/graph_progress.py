"""Follows a graph on the terminal: a line per change, a table at the end."""

from __future__ import annotations

import time
from collections.abc import Callable

from dashboard.progress import Stopped
from dashboard.results import how_to_take
from loops.core.graph import EdgeKind, GraphOutcome
from loops.core.lifecycle import RunStatus
from loops.core.money import dollars
from loops.core.text import one_line
from loops.figures import is_over, outcome_words
from loops.graph_figures import graph_words, waiting_words
from loops.models import Graph, Run

_POLL_SECONDS = 0.2

WAITS_FOR_A_PERSON = 4
EXIT_CODES: dict[str, int] = {
    GraphOutcome.SUCCESS: 0,
    GraphOutcome.REJECTED: 1,
    GraphOutcome.HARD_VETOED: 1,
    GraphOutcome.ESCALATED: 4,
    GraphOutcome.GOAL_CHANGED: 4,
    GraphOutcome.CANCELLED: 5,
    GraphOutcome.DEADLINE: 3,
}


def follow_graph(graph_id: int, say: Callable[[str], None], *, alive: Callable[[], bool]) -> Graph:
    """Print a line per change until the graph has ended or only people can move it on.

    Raises `Stopped` when `alive` turns false before that.
    """
    seen = 0
    while True:
        graph = Graph.objects.get(pk=graph_id)
        settled = graph.is_over or _waits_for_people(graph)
        for event in graph.events.filter(seq__gt=seen).order_by("seq"):
            seen = event.seq
            say(f"{event.created_at:%H:%M:%S}  {graph.key}  {one_line(event.text)}")
        if settled:
            return graph
        if not alive():
            raise Stopped
        time.sleep(_POLL_SECONDS)


def _waits_for_people(graph: Graph) -> bool:
    live = {run.status for run in _newest(graph).values() if not is_over(run)}
    return live == {RunStatus.AT_GATE}


def table(graph: Graph) -> list[str]:
    """A line per node, then how the graph stands and what it spent."""
    runs = _newest(graph)
    rows = []
    for node in graph.nodes.all():
        run = runs.get(node.task_id) if node.task_id else None
        words = outcome_words(run) if run else waiting_words(graph, node)[0]
        spent = f"${dollars(run.used.cost_microusd)}" if run else ""
        reason = one_line(run.sentence if run else node.reason)
        rows.append((node.name, words, spent, reason))
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    lines = ["  ".join([*(row[at].ljust(widths[at]) for at in range(3)), row[3]]) for row in rows]
    spent = dollars(graph.used.cost_microusd)
    ended = f"{graph.key}: {graph_words(graph)[0]}, ${spent}. {one_line(graph.reason)}"
    return [*lines, ended.rstrip()]


def results(graph: Graph) -> list[str]:
    """How to take the files of the nodes that no other node went on from."""
    runs = _newest(graph)
    went_on = graph.edges.filter(kind=EdgeKind.HANDOFF, target__task__isnull=False)
    last = graph.nodes.exclude(pk__in=went_on.values("source")).exclude(task=None)
    found = []
    for node in last:
        run = runs[node.task_id] if node.task_id else None
        if run is not None and run.result:
            found += [f"{node.name}:", *how_to_take(run)]
    return found


def _newest(graph: Graph) -> dict[int, Run]:
    return {run.task_id: run for run in graph.runs.select_related("task").order_by("number")}
