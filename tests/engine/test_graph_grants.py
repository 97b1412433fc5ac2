"""A person grants a graph more of what its tasks share."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from loops import gates
from loops.gates import NotPossibleNow
from loops.models import Escalation, Graph, GraphGrant, Run
from loops.store import graph_grants
from tests.engine import graph_scenes as g
from tests.engine import rows, scenes
from workers import graphs

pytestmark = pytest.mark.django_db(transaction=True)
CAP = g.CALL + 1000
"""One call fits, a second one does not."""


def ada() -> User:
    """The person."""
    return User.objects.get_or_create(username="ada")[0]


def stuck(*names: str, parallel: bool = False, **limits: int) -> Graph:
    """A graph whose budget its first task has used: the others wait at the gate for more."""
    scenes.agent("worker", "worker", *("text" for _ in range(6)))
    graph = g.submitted(
        *(g.node(name, g.one_pass(on_limit="gate")) for name in ("first", *names)),
        edges_text=" ".join(f"first>{name}" for name in names),
        parallel=parallel,
        limits={"cost_microusd": CAP, **limits},
    )
    return g.drive(graph)


def go_on(name: str, graph: Graph, words: str = "") -> Escalation:
    """Ada lets a task at the gate go on."""
    item = Escalation.objects.get(run=g.run_of(graph, name), status="open")
    return gates.decide(
        item.pk, decision="continue", digest=item.digest, user=ada(), guidance=words
    )


def test_a_task_that_its_graphs_budget_stopped_waits_for_a_person_who_is_told_so() -> None:
    graph = stuck("second")
    item = Escalation.objects.get()
    assert (graph.status, g.signals(graph)) == ("running", {"first": "ok", "second": ""})
    assert item.reason.startswith("What its graph may spend is used. The cost limit")
    assert item.packet["raises_graph"] == {"cost_microusd": 2 * CAP}
    assert "also_grants" not in item.packet
    assert item.allowed == ["continue", "close"]
    assert graphs.run_pass() == 0


def test_to_continue_raises_the_graph_keeps_the_rounds_and_needs_no_words() -> None:
    graph = stuck("second")
    item = go_on("second", graph)
    run = g.run_of(graph, "second")
    grant = GraphGrant.objects.get()
    assert (grant.cost_microusd, grant.tokens, grant.granted_by) == (CAP, 0, ada())
    assert (item.granted_iterations, run.limit_iterations, run.grants.count()) == (0, 1, 1)
    assert g.drive(graph).outcome == "success"
    assert (graph.limit_cost_microusd, graph.used.cost_microusd) == (2 * CAP, 2 * g.CALL)
    said = graph.events.get(kind="granted")
    assert (said.actor, said.text) == ("ada", "ada raised what its tasks may spend to $0.008")


def test_of_several_tasks_that_wait_for_the_same_budget_the_first_to_go_on_raises_it_once() -> None:
    graph = stuck("b", "c", parallel=True)
    for name in "bc":
        go_on(name, graph)
    graph.refresh_from_db()
    assert (graph.limit_cost_microusd, GraphGrant.objects.count()) == (2 * CAP, 1)
    g.drive(graph)
    # Two calls fit in it; the third task comes back, and what it shows is counted from there.
    again = Escalation.objects.get(status="open")
    assert again.packet["raises_graph"] == {"cost_microusd": 3 * CAP}


def test_the_next_limit_admits_at_least_the_call_that_was_refused() -> None:
    scenes.agent("worker", "worker", "text")
    graph = g.drive(
        g.submitted(g.node("a", g.one_pass(on_limit="gate")), limits={"cost_microusd": 0})
    )
    go_on("a", graph)
    assert g.drive(graph).outcome == "success"


def test_a_task_that_asks_nobody_ends_and_escalates() -> None:
    scenes.agent("worker", "worker", "text", "text")
    graph = g.submitted(
        *(g.node(name, g.one_pass(on_limit="stop")) for name in "ab"),
        limits={"cost_microusd": CAP},
    )
    assert g.drive(graph).outcome == "escalated"
    assert g.run_of(graph, "b").status == "budget_exhausted"
    with pytest.raises(graph_grants.NothingStarts):
        graph_grants.raise_limits(graph.pk, {"cost_microusd": 2 * CAP}, user=ada())
    assert not GraphGrant.objects.exists()


def test_the_same_grant_at_once_from_many_is_given_once() -> None:
    graph = g.submitted(g.node("a", g.retry()), limits={"tokens": 5, "model_calls": 2})
    user = ada()
    answers = rows.together(
        6, lambda _: graph_grants.raise_limits(graph.pk, {"tokens": 9, "model_calls": 2}, user=user)
    )
    assert sorted(map(str, answers)) == ["{'tokens': 4}", *["{}"] * 5]
    graph.refresh_from_db()
    assert (graph.limit_tokens, graph.limit_model_calls) == (9, 2)
    assert GraphGrant.objects.get().tokens == 4


def test_a_graph_that_is_being_cancelled_gets_nothing_more() -> None:
    graph = stuck("second")
    Graph.objects.filter(pk=graph.pk).update(cancel_requested=True)
    with pytest.raises(NotPossibleNow, match="starts nothing any more"):
        go_on("second", graph)
    assert Escalation.objects.get().status == "open"
    assert not GraphGrant.objects.exists()


def test_the_successor_starts_with_the_limits_from_before_any_grant() -> None:
    graph = g.submitted(
        g.node("a", g.retry()), governor="lead", limits={"tokens": 5, "deadline_seconds": 900}
    )
    graph_grants.raise_limits(graph.pk, {"tokens": 50}, user=ada())
    g.drive(graph)
    g.govern(graph, "change_goal", "Less.")
    graphs.run_pass()
    new = Graph.objects.get(pk=graph.pk).successor
    assert new.limit_tokens == 5
    assert round((new.deadline_at - new.created_at).total_seconds()) == 900


@pytest.mark.parametrize(
    ("caps", "field", "words"),
    [
        ({}, "limits", "at least one of: tokens"),
        ({"tool_calls": 4}, "limits.tool_calls", "no limit here"),
        ({"tokens": 4}, "limits.tokens", "is 5 already"),
        ({"tokens": 10**16}, "limits.tokens", "at most"),
    ],
)
def test_what_cannot_be_granted_is_said_at_its_field(
    caps: dict[str, int], field: str, words: str
) -> None:
    graph = g.submitted(g.node("a", g.retry()), limits={"tokens": 5})
    (problem,) = graph_grants.problems_of(graph, caps)
    assert problem.field == field
    assert words in problem.message


def test_a_run_that_a_person_granted_more_draws_on_it_at_once() -> None:
    graph = stuck("second")
    graph_grants.raise_limits(graph.pk, {"cost_microusd": 9 * CAP}, user=ada())
    go_on("second", graph)
    graph.refresh_from_db()
    assert graph.limit_cost_microusd == 9 * CAP
    assert Run.objects.filter(status="queued").count() == 1
