"""The only writer of graphs. Every change is a compare-and-set on the graph's version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from loops import feed
from loops.core import graph as core
from loops.core.graph_run import AskGovernor, End, NodeResult
from loops.core.lifecycle import TERMINAL, RunStatus
from loops.core.limits import Limits
from loops.models import Graph, GraphEdge, GraphEvent, GraphNode, GraphStatus, Project, Run, Task
from loops.models.graph import COUNTED
from loops.store import artifacts
from loops.store.submit import Submission, start_run, store

if TYPE_CHECKING:
    from django.contrib.auth.models import User

SYSTEM = "system"
GOVERNOR = "governor"
"""Stands in the place of a pattern on the task that a person does."""
MOST_RESULT = 60_000
LIVE = [status for status in RunStatus if status not in TERMINAL]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A graph without problems, before it is stored."""

    title: str
    contract: core.Graph
    documents: Mapping[str, dict[str, Any]]
    limits: Mapping[str, int | None] = field(default_factory=dict)


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
    text = artifacts.get_text(result.get("text", ""))
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


def create(
    draft: Draft, *, project: Project, user: User | None, successor_of: Graph | None = None
) -> Graph:
    """Write the graph with its nodes and edges; nothing has started. Call it in a transaction."""
    contract = draft.contract
    graph = Graph.objects.create(
        project=project,
        title=draft.title,
        aim=contract.aim,
        mode=contract.mode.value,
        governor=contract.governor,
        created_by=user,
        successor_of=successor_of,
        **{f"limit_{axis}": draft.limits.get(axis) for axis in COUNTED},
    )
    nodes = {
        name: GraphNode.objects.create(
            graph=graph, name=name, position=at, document=draft.documents[name]
        )
        for at, name in enumerate(contract.nodes)
    }
    GraphEdge.objects.bulk_create(
        GraphEdge(
            graph=graph, source=nodes[edge.source], target=nodes[edge.target], kind=edge.kind.value
        )
        for edge in contract.edges
    )
    actor = user.get_username() if user else SYSTEM
    text = f"submitted as the successor of {successor_of.key}" if successor_of else "submitted"
    record(graph.pk, "submitted", text, actor=actor)
    return graph


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


def claim(graph: Graph) -> bool:
    """The right to make the next change. False: somebody else made one since it was read.

    Call it first in the transaction that makes the change: it also holds the graph's row.
    """
    mine = Graph.objects.filter(pk=graph.pk, version=graph.version)
    return bool(mine.exclude(status=GraphStatus.ENDED).update(version=F("version") + 1))


def keep(node: GraphNode, result: NodeResult) -> None:
    """Record what a node came to."""
    node.signal, node.reason, node.output = result.signal.value, result.reason, result.output
    node.save(update_fields=["signal", "reason", "output"])
    words = {
        core.Signal.OK: "succeeded",
        core.Signal.SOFT_OBJECTION: "objects",
        core.Signal.HARD_VETO: "vetoes",
        core.Signal.ESCALATION: "escalates",
    }[result.signal]
    reason = f": {result.reason}" if result.signal is not core.Signal.OK else ""
    record(node.graph_id, "node_ended", f"{node.name} {words}{reason}")


def start(graph: Graph, node: GraphNode, submission: Submission) -> Task:
    """Begin a node as an ordinary task with a run."""
    task = store(submission, graph.project, graph.created_by, graph=graph)
    GraphNode.objects.filter(pk=node.pk).update(task=task)
    record(graph.pk, "node_started", f"{node.name} started as {task.key}", nudge=True)
    return task


def start_governor(graph: Graph, node: GraphNode, step: AskGovernor) -> Run:
    """The task of the governor. A person does it, so its run goes to the gate at once."""
    task = Task.objects.create(
        project=graph.project,
        pattern=GOVERNOR,
        title=node.document["title"],
        local_aim=graph.aim,
        spec={},
        limits=Limits(iterations=1).as_dict(),
        on_limit="gate",
        graph=graph,
        created_by=graph.created_by,
    )
    GraphNode.objects.filter(pk=node.pk).update(task=task)
    Graph.objects.filter(pk=graph.pk).update(
        status=GraphStatus.AT_GATE, reason=step.reason, updated_at=Now()
    )
    record(graph.pk, "governor_asked", f"{node.name} is asked. {step.reason}")
    return start_run(task, user=None)


def end(graph: Graph, step: End, *, actor: str = SYSTEM) -> None:
    """Nothing follows."""
    Graph.objects.filter(pk=graph.pk).update(
        status=GraphStatus.ENDED,
        outcome=step.outcome.value,
        reason=step.reason,
        ended_at=Now(),
        updated_at=Now(),
    )
    words = step.outcome.value.replace("_", " ")
    record(graph.pk, "ended", f"{words}: {step.reason}", actor=actor)


def succeed(scene: Scene, goal: str, *, user: User | None) -> Graph:
    """The same graph with another aim; the old one keeps its own."""
    old = scene.graph
    contract = scene.contract
    draft = Draft(
        title=old.title,
        contract=core.Graph(
            aim=goal,
            nodes=contract.nodes,
            edges=contract.edges,
            mode=contract.mode,
            governor=contract.governor,
        ),
        documents={name: node.document for name, node in scene.nodes.items()},
        limits={axis: getattr(old, f"limit_{axis}") for axis in COUNTED},
    )
    return create(draft, project=old.project, user=user, successor_of=old)


def request_cancel(graph: Graph, *, actor: str) -> bool:
    """From now on nothing of it starts. False: it is over, or this was asked before."""
    with transaction.atomic():
        asked = (
            Graph.objects.filter(pk=graph.pk, cancel_requested=False)
            .exclude(status=GraphStatus.ENDED)
            .update(cancel_requested=True, version=F("version") + 1, updated_at=Now())
        )
        if asked:
            record(graph.pk, "cancel_requested", "cancel requested", actor=actor)
    return bool(asked)


def live_runs(graph_id: int) -> list[Run]:
    """Its runs that have not ended."""
    return list(Run.objects.filter(graph=graph_id, status__in=LIVE).order_by("id"))


def due() -> list[int]:
    """The graphs that a pass would move on, and those that ended with runs still to be stopped."""
    runs = Run.objects.filter(task=OuterRef("task"))
    started = GraphNode.objects.filter(graph=OuterRef("pk"), signal="", task__isnull=False)
    landed = started.filter(Exists(runs)).exclude(Exists(runs.filter(status__in=LIVE)))
    moving: QuerySet[Graph] = Graph.objects.exclude(status=GraphStatus.ENDED).filter(
        Q(cancel_requested=True) | Q(Exists(landed)) | ~Q(Exists(started))
    )
    left = Run.objects.filter(
        status__in=LIVE, graph__status=GraphStatus.ENDED, cancel_requested=False
    )
    found = {*moving.values_list("pk", flat=True)[:500]}
    found.update(pk for pk in left.values_list("graph", flat=True)[:500] if pk is not None)
    return sorted(found)


def record(
    graph_id: int, kind: str, text: str, *, actor: str = SYSTEM, nudge: bool = False
) -> None:
    """Add one event. Call it inside the transaction that makes the change."""
    Graph.objects.filter(pk=graph_id).update(event_seq=F("event_seq") + 1, updated_at=Now())
    seq = Graph.objects.values_list("event_seq", flat=True).get(pk=graph_id)
    GraphEvent.objects.create(graph_id=graph_id, seq=seq, kind=kind, text=text, actor=actor)
    feed.graph_changed(graph_id, seq, nudge=nudge)
