"""Reads graphs: how one stands, what its ended runs say, and which of them are due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from loops.core import graph as core
from loops.core.graph_run import NodeResult
from loops.core.lifecycle import TERMINAL, RunStatus
from loops.models import Graph, GraphNode, GraphStatus, Run
from loops.store import artifacts

MOST_RESULT = 60_000
LIVE = [status for status in RunStatus if status not in TERMINAL]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A graph as it stood when it was read."""

    graph: Graph
    contract: core.Graph
    nodes: Mapping[str, GraphNode]
    runs: Mapping[int, Run]
    """The newest run of every task, by task."""

    @property
    def done(self) -> dict[str, NodeResult]:
        """What has been recorded."""
        return {
            name: NodeResult(
                signal=core.Signal(node.signal), output=node.output, reason=node.reason
            )
            for name, node in self.nodes.items()
            if node.signal and name != self.contract.governor
        }

    @property
    def running(self) -> tuple[str, ...]:
        """What has started and is not recorded."""
        return tuple(name for name in self.contract.loops if self._in_flight(name))

    def run_of(self, name: str) -> Run | None:
        """The newest run of a node."""
        task_id = self.nodes[name].task_id
        return None if task_id is None else self.runs.get(task_id)

    def landed(self) -> dict[str, NodeResult]:
        """What has ended and is not recorded yet."""
        found = {}
        for name in self.running:
            run = self.run_of(name)
            if run is not None and run.is_terminal:
                found[name] = result_of(run, self.nodes[name].document)
        return found

    def _in_flight(self, name: str) -> bool:
        node = self.nodes[name]
        return node.task_id is not None and not node.signal


def result_of(run: Run, document: Mapping[str, Any]) -> NodeResult:
    """What a node's ended run says to its graph.

    A loop that exhausts or escalates raises an escalation (S1-X12), unless the graph was written to
    take this task's "no" as an objection or a veto. A cancel is always an escalation.
    """
    output = _output(run)
    if run.status == RunStatus.SUCCEEDED:
        return NodeResult(output=output, reason=run.sentence)
    said = core.Signal(document.get("on_fail", core.Signal.ESCALATION))
    signal = core.Signal.ESCALATION if run.status == RunStatus.CANCELLED else said
    return NodeResult(signal=signal, output=output, reason=run.sentence)


def _output(run: Run) -> dict[str, Any]:
    result = run.result or {}
    text = _text(result.get("text", ""))
    cut = f"{text[:MOST_RESULT]}\n[... cut ...]" if len(text) > MOST_RESULT else text
    return {
        "outcome": run.status,
        "reason": run.sentence,
        "result": cut,
        "commit": result.get("commit", ""),
        "branch": result.get("branch", ""),
        "files": [file["line"] for file in result.get("files", [])],
        "handoff": result.get("handoff", ""),
    }


def _text(digest: str) -> str:
    try:
        return artifacts.get_text(digest)
    except FileNotFoundError:
        return "[the storage has lost this text]"


def load(graph_id: int) -> Scene:
    """The graph with everything that its next step depends on."""
    graph = Graph.objects.select_related("project", "created_by").get(pk=graph_id)
    nodes = {node.name: node for node in graph.nodes.select_related("task")}
    names = {node.pk: node.name for node in nodes.values()}
    edges = tuple(
        core.Edge(
            source=names[edge.source_id],
            target=names[edge.target_id],
            kind=core.EdgeKind(edge.kind),
        )
        for edge in graph.edges.all()
    )
    contract = core.Graph(
        aim=graph.aim,
        nodes=tuple(nodes),
        edges=edges,
        mode=core.Mode(graph.mode),
        governor=graph.governor,
    )
    runs = {run.task_id: run for run in graph.runs.select_related("task").order_by("number")}
    return Scene(graph=graph, contract=contract, nodes=nodes, runs=runs)


def live_runs(graph_id: int) -> list[Run]:
    """Its runs that have not ended."""
    return list(Run.objects.filter(graph=graph_id, status__in=LIVE).order_by("id"))


def due() -> list[int]:
    """The graphs that a pass would move on, and those that ended with runs still to be stopped."""
    runs = Run.objects.filter(task=OuterRef("task"))
    started = GraphNode.objects.filter(graph=OuterRef("pk"), signal="", task__isnull=False)
    landed = started.filter(Exists(runs)).exclude(Exists(runs.filter(status__in=LIVE)))
    moving: QuerySet[Graph] = Graph.objects.exclude(status=GraphStatus.ENDED).filter(
        Q(cancel_requested=True)
        | Q(deadline_at__lte=Now())
        | Q(Exists(landed))
        | ~Q(Exists(started))
    )
    left = Run.objects.filter(
        status__in=LIVE, graph__status=GraphStatus.ENDED, cancel_requested=False
    )
    found = {*moving.values_list("pk", flat=True)[:500]}
    found.update(pk for pk in left.values_list("graph", flat=True)[:500] if pk is not None)
    return sorted(found)
