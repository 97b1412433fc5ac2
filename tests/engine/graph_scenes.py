"""Scenes with graphs: tasks that end as they are told, driven by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib.auth.models import User

from loops import gates
from loops.core.graph import Edge, EdgeKind, Mode, Signal
from loops.models import Escalation, Graph, Run, Task
from tests.engine import scenes
from workers.graph_intake import GraphRequest, NodeRequest, accept_graph
from workers.intake import TaskRequest

CALL = 3_000
"""What one call of a scripted agent costs in these scenes, in micro-dollars."""


def one_pass(prompt: str = "Do it.", *, agent: str = "worker", **facts: Any) -> TaskRequest:
    """A task of one call, so it ends with the agent's one answer."""
    return TaskRequest(
        **{
            "pattern": "one_pass",
            "title": "",
            "spec": {"prompt": prompt},
            "limits": {"iterations": 1},
            "agents": {"worker": agent},
            **facts,
        }
    )


def retry(accept_up_to: int = 3, **facts: Any) -> TaskRequest:
    """A contract that succeeds in round 2, or uses its rounds up; it calls no agent."""
    return TaskRequest(
        **{
            "pattern": "contract",
            "title": "",
            "spec": {
                "builder": "retry_feature",
                "arguments": f'{{"accept_up_to": {accept_up_to}}}',
            },
            "limits": {"iterations": 2},
            **facts,
        }
    )


def edges(text: str) -> list[Edge]:
    """`a>b b>c:data` as edges."""
    found = []
    for one in text.split():
        ends, _, kind = one.partition(":")
        source, target = ends.split(">")
        found.append(Edge(source=source, target=target, kind=EdgeKind(kind or "dependency")))
    return found


def request(
    *nodes: NodeRequest, edges_text: str = "", governor: str = "", **facts: Any
) -> GraphRequest:
    """A graph of these nodes, with a place for the governor if it has one."""
    place = [NodeRequest(name=governor)] if governor else []
    return GraphRequest(
        **{
            "title": "release",
            "aim": "Ship the release.",
            "nodes": [*nodes, *place],
            "edges": edges(edges_text),
            "governor": governor,
            **facts,
        }
    )


def node(name: str, task: TaskRequest, *, on_fail: str = "escalation", **facts: Any) -> NodeRequest:
    """One node."""
    return NodeRequest(name=name, task=task, on_fail=Signal(on_fail), **facts)


def submitted(*nodes: NodeRequest, parallel: bool = False, **facts: Any) -> Graph:
    """The stored graph; what is ready has started."""
    mode = Mode.PARALLEL if parallel else Mode.SERIAL
    made = request(*nodes, mode=mode, **facts)
    return accept_graph(made, project=scenes.project(), user=None, roots=[Path("/")])


def task_of(graph: Graph, name: str) -> Task:
    """The task of a node that has started."""
    task = graph.nodes.get(name=name).task
    assert task is not None
    return task


def run_of(graph: Graph, name: str) -> Run:
    """The newest run of a node that has started."""
    return task_of(graph, name).runs.latest("number")


def drive(graph: Graph, most: int = 30) -> Graph:
    """Run attempts until the graph has ended or waits for people only."""
    for _ in range(most):
        run = Run.objects.filter(graph=graph, status="queued").order_by("id").first()
        if run is None:
            break
        scenes.step(run)
    else:
        raise AssertionError(f"{graph} is not bounded")
    graph.refresh_from_db()
    return graph


def signals(graph: Graph) -> dict[str, str]:
    """What the nodes have said; empty for those that did not run."""
    return dict(graph.nodes.exclude(name=graph.governor).values_list("name", "signal"))


def started(graph: Graph) -> list[str]:
    """The nodes that have a task, in their order."""
    return list(graph.nodes.filter(task__isnull=False).values_list("name", flat=True))


def govern(graph: Graph, decision: str, goal: str = "", *, name: str = "ada") -> Escalation:
    """A person decides the open item of the graph's governor."""
    item = Escalation.objects.get(run__graph=graph, cause="governor", status="open")
    user = User.objects.get_or_create(username=name)[0]
    return gates.decide(item.pk, decision=decision, digest=item.digest, user=user, guidance=goal)
