"""A graph is taken whole or not at all, and every problem is said at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loops.models import Graph, GraphNode, Task
from loops.store.submit import KeyReused, Problem, Refused, RequestKey
from tests.engine import graph_scenes as g
from tests.engine import rows, scenes
from workers.graph_intake import GraphRequest, NodeRequest, accept_graph

pytestmark = pytest.mark.django_db(transaction=True)


def _refused(request: GraphRequest, *unread: Problem) -> dict[str, str]:
    with pytest.raises(Refused) as caught:
        accept_graph(request, project=scenes.project(), user=None, roots=[Path("/")], unread=unread)
    assert (Graph.objects.count(), GraphNode.objects.count(), Task.objects.count()) == (0, 0, 0)
    return {problem.field: problem.message for problem in caught.value.problems}


def test_s1_x06_every_problem_of_graph_and_nodes_is_reported_at_once(tmp_path: Path) -> None:
    found = _refused(
        g.request(
            g.node("build", g.retry(pattern="check_fix", spec={"checks": [" "]}, title="x" * 201)),
            g.node("b.c", g.one_pass(agent="nobody", limits={})),
            g.node("review", g.retry(pattern="nothing"), source_from="build"),
            g.node("away", g.one_pass(spec={"command": "x"}, agents={}, repo=str(tmp_path / "no"))),
            edges_text="build>review review>build build>moon",
            governor="",
            title=" ",
            limits={"iterations": 3, "tokens": -1},
        ),
        Problem(field="nodes.odd.spec", code="missing", message="is missing"),
    )
    assert list(found) == [
        "nodes.odd.spec",
        "title",
        "edges.2.to",
        "edges",
        "nodes.b.c",
        "limits.iterations",
        "limits.tokens",
        "nodes.build.title",
        "nodes.build.spec.checks",
        "nodes.build.source.repo",
        "nodes.b.c.limits.iterations",
        "nodes.b.c.agents.worker",
        "nodes.review.pattern",
        "nodes.review.source.from",
        "nodes.away.source.repo",
    ]
    assert "build -> review -> build" in found["edges"]


def test_rc162_a_cycle_between_tasks_is_refused_with_its_path() -> None:
    nodes = [g.node(name, g.retry()) for name in "ab"]
    found = _refused(g.request(*nodes, edges_text="b>a a>b"))
    assert found == {"edges": "these nodes wait for each other: a -> b -> a"}


def test_s1_x06_a_governor_that_is_no_node_is_refused() -> None:
    request = GraphRequest(title="t", nodes=[g.node("a", g.retry())], governor="lead")
    assert _refused(request) == {"governor": "there is no node 'lead'; there are: a"}


@pytest.mark.parametrize(
    ("prompt", "edges", "words"),
    [
        ("{{ nodes.a.result }}", "", "needs an edge of the kind data from a"),
        ("{{ nodes.a.result }}", "a>b", "needs an edge of the kind data from a"),
        ("{{ nodes.moon.result }}", "a>b:data", "needs an edge of the kind data from moon"),
        ("{{ nodes.a.secret }}", "a>b:data", "there are: result, commit"),
    ],
)
def test_a_placeholder_names_what_an_edge_brings(prompt: str, edges: str, words: str) -> None:
    scenes.agent("worker", "worker")
    found = _refused(
        g.request(g.node("a", g.one_pass()), g.node("b", g.one_pass(prompt)), edges_text=edges)
    )
    assert list(found) == ["nodes.b.spec.prompt"]
    assert words in found["nodes.b.spec.prompt"]


@pytest.mark.parametrize(
    "spec", [{"command": "echo {{ nodes.a.result }}"}, {"checks": ["x {{ graph.aim }}"]}]
)
def test_no_command_is_made_of_what_another_task_said(spec: dict[str, Any], tmp_path: Path) -> None:
    scenes.agent("worker", "worker")
    repo = scenes.repository(tmp_path / "repo", base="0\n")
    task = g.one_pass(spec={"prompt": "", **spec}, agents={}, repo=str(repo))
    if "checks" in spec:
        task = g.one_pass(spec={"prompt": "x", **spec}, repo=str(repo))
    found = _refused(g.request(g.node("a", g.one_pass()), g.node("b", task), edges_text="a>b:data"))
    assert ["a text for an agent only" in message for message in found.values()] == [True]


def test_a_graph_with_a_cost_cap_takes_no_agent_without_a_price() -> None:
    scenes.agent("worker", "worker", input_usd_per_mtok=None)
    found = _refused(g.request(g.node("a", g.one_pass()), limits={"cost_microusd": 5}))
    assert "has no price" in found["nodes.a.agents.worker"]


def test_files_are_handed_on_only_by_who_has_some_and_a_veto_by_who_can() -> None:
    found = _refused(
        g.request(
            g.node("a", g.retry()),
            g.node("b", g.retry(), source_from="a"),
            edges_text="a>b:handoff a>b:veto",
        )
    )
    assert found == {
        "edges.1.kind": "a never vetoes: give it `on_fail`, hard_veto or soft_objection",
        "nodes.b.source.from": "a has no files to hand on",
    }


def test_all_nodes_start_from_the_same_commit_of_a_repository(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", base="0\n")
    task = g.one_pass(spec={"command": "true"}, agents={}, repo=str(repo))
    graph = g.submitted(g.node("a", task), g.node("b", task))
    before = [node.document["submission"]["source"]["commit"] for node in graph.nodes.all()]
    assert len(set(before)) == 1


def test_the_same_key_gives_the_same_graph_also_at_once() -> None:
    key = RequestKey(owner="token:1", key="k", request_digest="d")
    request = g.request(g.node("a", g.retry()))
    project = scenes.project()
    answers = rows.together(
        4, lambda _: accept_graph(request, project=project, user=None, request_key=key)
    )
    assert {getattr(answer, "pk", answer) for answer in answers} == {Graph.objects.get().pk}
    other = RequestKey(owner="token:1", key="k", request_digest="other")
    with pytest.raises(KeyReused):
        accept_graph(request, project=project, user=None, request_key=other)


def test_a_node_has_a_title_and_the_governor_a_place() -> None:
    graph = g.submitted(g.node("a", g.retry()), governor="lead")
    assert g.task_of(graph, "a").title == "release: a"
    assert graph.nodes.get(name="lead").document == {"title": "lead: decide on release"}
    request = g.request(NodeRequest(name="lead", title="Lead decides"), governor="")
    assert request.contract().governor == ""
