"""Processes that are killed while they move a graph: each node runs once, one person is asked."""

from __future__ import annotations

from pathlib import Path
from pprint import pformat

import pytest
from django.db.models import QuerySet

from loops.models import Escalation, Graph, Run, Step
from tests.engine import graph_scenes as g
from tests.engine import processes, scenes
from workers import dispatch, graphs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.worker]

POINTS = ("child-ended", "signal-recorded", "child-submitted", "governor-asked", "graph-moved")


def release(name: str) -> Graph:
    """Two tasks, the second one from the result of the first, and a governor."""
    scenes.agent(name, "worker", f"{name} wrote this", f"{name} read it")
    return g.submitted(
        g.node("write", g.one_pass(agent=name)),
        g.node("read", g.one_pass("Read: {{ nodes.write.result }}", agent=name)),
        edges_text="write>read:data",
        governor="lead",
    )


def facts(graph: Graph, name: str) -> str:
    """All that nodes and people saw and that was spent, without what every graph has of its own."""
    graph.refresh_from_db()
    item = Escalation.objects.get(run__graph=graph)
    found = {
        "prompt": g.task_of(graph, "read").spec["prompt"],
        "shown": [{**node, "task": None} for node in item.packet["nodes"]],
        "nodes": list(graph.nodes.values_list("name", "signal", "output")),
        "events": list(graph.events.order_by("seq").values_list("kind", flat=True)),
        "attempts": [list(run.attempts.values_list("no", "claims")) for run in runs_of(graph)],
        "calls": Step.objects.filter(run__graph=graph, status="done").count(),
        "spent": (graph.used, graph.reserved, graph.status),
    }
    return pformat(found).replace(name, "agent")


def runs_of(graph: Graph) -> QuerySet[Run]:
    """Every run of the graph, in the order of their start."""
    return graph.runs.order_by("pk")


def asked(graph: Graph) -> bool:
    """Whether its governor was."""
    return Escalation.objects.filter(run__graph=graph).exists()


def at(point: str, marker: Path) -> dict[str, str]:
    """The environment of a process that dies there."""
    return {"LOOPWARDEN_CRASHPOINT": f"{point}@{marker}"}


def as_if_nothing_happened(graph: Graph) -> None:
    """It ends as its calm twin did, and nothing is left to do."""
    calm = g.drive(release("calm"))
    assert facts(graph, "shaken") == facts(calm, "calm")
    assert graphs.run_pass() == 0


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_killed_while_it_moves_a_graph_loses_and_doubles_nothing(
    point: str, log: Path, tmp_path: Path
) -> None:
    graph = release("shaken")
    # No tender yet: then it is the worker that reacts to the end of its run, and dispatches.
    dispatch.run_pass()
    with processes.worker(log, **at(point, tmp_path / "died")) as first:
        assert first.process.wait(60) == -9
    with processes.tender(log), processes.worker(log):
        processes.until(lambda: asked(graph))
    as_if_nothing_happened(graph)


def test_a_tender_killed_while_it_asks_the_governor_asks_once(log: Path, tmp_path: Path) -> None:
    graph = release("shaken")
    with processes.tender(log, **at("governor-asked", tmp_path / "died")) as tender:
        for child in "ab":
            # It dies with its run ended and its graph not moved: that is left to the tender.
            with processes.worker(log, **at("finished", tmp_path / child)) as worker:
                assert worker.process.wait(60) == -9
        assert tender.process.wait(60) == -9
    with processes.tender(log):
        processes.until(lambda: asked(graph))
    as_if_nothing_happened(graph)
