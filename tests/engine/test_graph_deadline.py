"""The deadline that a graph sets for itself and for everything that it starts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from loops import gates
from loops.gates import NotPossibleNow
from loops.graph_figures import effective_status, graph_words
from loops.models import Escalation, Graph, Run, Task
from loops.store import graph_scenes as store
from loops.store.graphs import request_cancel
from loops.store.submit import start_run
from tests.engine import graph_scenes as g
from tests.engine import rows, scenes
from workers import graphs, sweeper

pytestmark = pytest.mark.django_db(transaction=True)


def passes(graph: Graph) -> None:
    """Its deadline, and with it the later or equal ones of its runs, is a moment ago."""
    ago = timezone.now() - timedelta(seconds=1)
    Run.objects.filter(graph=graph, deadline_at__gte=graph.deadline_at).update(deadline_at=ago)
    Graph.objects.filter(pk=graph.pk).update(deadline_at=ago)
    graph.refresh_from_db()


def submitted(*nodes: Any, **facts: Any) -> Graph:
    """A graph that has ten minutes."""
    return g.submitted(*nodes, limits={"deadline_seconds": 600}, **facts)


def test_no_run_of_the_graph_has_a_later_deadline() -> None:
    graph = submitted(
        g.node("none", g.retry()),
        g.node("later", g.retry(limits={"iterations": 2, "deadline_seconds": 9000})),
        g.node("sooner", g.retry(limits={"iterations": 2, "deadline_seconds": 60})),
        governor="lead",
        parallel=True,
    )
    ends = graph.deadline_at
    assert ends is not None
    assert 595 < (ends - timezone.now()).total_seconds() <= 600
    assert [g.run_of(graph, name).deadline_at for name in ("none", "later")] == [ends, ends]
    assert g.run_of(graph, "sooner").deadline_at < ends
    again = start_run(Task.objects.get(pk=g.task_of(graph, "later").pk), user=None)
    assert again.deadline_at == ends
    again.delete()
    g.drive(graph)
    assert g.run_of(graph, "lead").deadline_at == ends


@pytest.mark.parametrize("first", [graphs.run_pass, sweeper.run_pass])
def test_when_it_passes_everything_ends_with_no_worker_alive(first: Any) -> None:
    graph = submitted(
        g.node("queued", g.retry()),
        g.node("running", g.retry()),
        g.node("gate", g.retry(0, on_limit="gate")),
        g.node("after", g.retry()),
        edges_text="queued>after",
        governor="lead",
        parallel=True,
    )
    for _ in range(2):
        scenes.step(g.run_of(graph, "gate"))
    rows.take(rows.change(g.run_of(graph, "running"), admitted_at=graph.created_at))
    passes(graph)
    first()
    graphs.run_pass()
    graph.refresh_from_db()
    assert (graph.status, graph.outcome) == ("ended", "deadline")
    assert graph.reason.startswith("The graph's deadline has passed")
    for name in ("queued", "running", "gate"):
        run = g.run_of(graph, name)
        assert (run.status, run.stop_reason) == ("budget_exhausted", "deadline")
    assert Escalation.objects.get().status == "expired"
    assert g.started(graph) == ["queued", "running", "gate"]
    assert store.due() == []


def test_it_holds_on_every_read_the_moment_it_passes() -> None:
    graph = submitted(g.node("a", g.retry()))
    assert effective_status(graph) == ("running", "")
    passes(graph)
    assert effective_status(graph) == ("ended", "deadline")
    assert graph_words(graph) == ("Deadline passed", "changes")
    assert not request_cancel(graph, actor="ada")


def test_nothing_starts_after_it() -> None:
    graph = submitted(g.node("a", g.retry()), g.node("b", g.retry()), edges_text="a>b")
    run = g.run_of(graph, "a")
    Run.objects.filter(pk=run.pk).update(status="succeeded", stop_reason="accepted")
    passes(graph)
    graphs.run_pass()
    graph.refresh_from_db()
    assert (graph.outcome, g.started(graph), g.signals(graph)["a"]) == ("deadline", ["a"], "ok")


def test_what_had_succeeded_in_time_is_a_success_however_late_it_is_noticed() -> None:
    graph = submitted(g.node("a", g.retry()))
    run = g.run_of(graph, "a")
    Run.objects.filter(pk=run.pk).update(status="succeeded", stop_reason="accepted")
    passes(graph)
    graphs.run_pass()
    graph.refresh_from_db()
    assert graph.outcome == "success"


def test_a_governor_cannot_decide_after_it_and_the_graph_ends() -> None:
    graph = g.drive(submitted(g.node("a", g.retry()), governor="lead"))
    passes(graph)
    with pytest.raises(NotPossibleNow, match="deadline has passed"):
        g.govern(graph, "approve")
    graphs.run_pass()
    graph.refresh_from_db()
    assert (graph.outcome, Escalation.objects.get().status) == ("deadline", "expired")


def test_what_the_governor_decided_in_time_stands() -> None:
    graph = g.drive(submitted(g.node("a", g.retry()), governor="lead"))
    g.govern(graph, "approve")
    passes(graph)
    graphs.run_pass()
    graph.refresh_from_db()
    assert graph.outcome == "success"


def test_a_run_at_the_gate_cannot_go_on_after_it() -> None:
    graph = submitted(g.node("a", g.retry(0, on_limit="gate")))
    g.drive(graph)
    passes(graph)
    item = Escalation.objects.get()
    ada = User.objects.create_user("ada")
    with pytest.raises(NotPossibleNow, match="deadline has passed"):
        gates.decide(item.pk, decision="continue", digest=item.digest, user=ada, guidance="x")
