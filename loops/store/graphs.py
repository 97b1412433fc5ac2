"""The only writer of graphs. Every change is a compare-and-set on the graph's version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from loops.core import graph as core
from loops.core.graph_run import AskGovernor, End, NodeResult
from loops.core.limits import Limits
from loops.models import Graph, GraphEdge, GraphNode, GraphStatus, Project, Run, Task
from loops.models.budget import COUNTED
from loops.store import graph_grants
from loops.store.graph_events import SYSTEM, record
from loops.store.graph_scenes import Scene
from loops.store.submit import Submission, deadline_after, start_run, store

if TYPE_CHECKING:
    from django.contrib.auth.models import User

GOVERNOR = "governor"
"""Stands in the place of a pattern on the task that a person does."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A graph without problems, before it is stored."""

    title: str
    contract: core.Graph
    documents: Mapping[str, dict[str, Any]]
    limits: Mapping[str, int | None] = field(default_factory=dict)
    """The counted axes, and `deadline_seconds`."""


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
        deadline_at=deadline_after(draft.limits.get("deadline_seconds")),
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
        limits=graph_grants.first_limits(old),
    )
    return create(draft, project=old.project, user=user, successor_of=old)


def request_cancel(graph: Graph, *, actor: str) -> bool:
    """From now on nothing of it starts. False: it is over, or this was asked before."""
    with transaction.atomic():
        asked = (
            Graph.objects.filter(pk=graph.pk, cancel_requested=False)
            .exclude(status=GraphStatus.ENDED)
            .exclude(deadline_at__lte=Now())
            .update(cancel_requested=True, version=F("version") + 1, updated_at=Now())
        )
        if asked:
            record(graph.pk, "cancel_requested", "cancel requested", actor=actor)
    return bool(asked)
