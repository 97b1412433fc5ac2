"""The budget that the tasks of a graph share."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection
from django.db.models import Sum

from loops.core.errors import LimitReached
from loops.core.limits import Amount
from loops.models import Graph, Run
from loops.store import corrections, days, ledger
from tests.engine import graph_scenes as g
from tests.engine import rows, scenes
from workers import graphs

pytestmark = pytest.mark.django_db(transaction=True)


def _children(count: int, **limits: int) -> tuple[Graph, list[ledger.Claim]]:
    """A graph with so many running children."""
    names = [f"n{at}" for at in range(count)]
    graph = g.submitted(*(g.node(name, g.retry()) for name in names), parallel=True, limits=limits)
    claims = []
    for name in names:
        run = rows.change(g.run_of(graph, name), admitted_at=graph.created_at)
        claims.append(rows.take(run))
    return graph, claims


def _spent(graph: Graph) -> tuple[int, int]:
    graph.refresh_from_db()
    return graph.used.cost_microusd, graph.reserved.cost_microusd


def test_children_that_reserve_at_once_never_exceed_the_graphs_cap() -> None:
    graph, claims = _children(6, cost_microusd=1000, model_calls=4)
    worst = Amount(model_calls=1, tokens=10, cost_microusd=300)
    answers = rows.together(6, lambda n: ledger.reserve(claims[n], rows.call(), worst))
    refused = [answer for answer in answers if isinstance(answer, LimitReached)]
    assert len(refused) == 3, answers
    assert {(error.axis, error.owner) for error in refused} == {("cost", "graph")}
    assert _spent(graph) == (0, 900)
    held = Run.objects.aggregate(sum=Sum("reserved_cost_microusd"))["sum"]
    assert held == 900


def test_a_refusal_by_the_graph_takes_nothing_from_the_run() -> None:
    _, (claim,) = _children(1, tokens=10)
    with pytest.raises(LimitReached):
        ledger.reserve(claim, rows.call(), Amount(tokens=11))
    run = Run.objects.get()
    assert (run.reserved.tokens, run.steps.count(), run.reservations.count()) == (0, 0, 0)


def test_the_runs_own_cap_is_named_before_the_graphs() -> None:
    _, (claim,) = _children(1, tokens=10)
    rows.change(Run.objects.get(), limit_tokens=5)
    with pytest.raises(LimitReached) as caught:
        ledger.reserve(claim, rows.call(), Amount(tokens=11))
    assert (caught.value.owner, caught.value.cap) == ("run", 5)


def test_settling_releasing_and_closing_what_was_lost_reach_the_graph() -> None:
    graph, (claim,) = _children(1, cost_microusd=10_000)
    worst = Amount(model_calls=1, tokens=10, cost_microusd=1000)
    settled, released = (ledger.reserve(claim, rows.call(n), worst) for n in (1, 2))
    assert ledger.send(settled)
    ledger.settle(claim, 1, settled, rows.answer(tokens=4, cost_microusd=400))
    assert _spent(graph) == (400, 1000)
    ledger.release(released)
    assert _spent(graph) == (400, 0)
    rows.sent(claim, worst, seq=3)
    ledger.reserve(claim, rows.call(4), worst)
    assert ledger.close_lost(claim.run_id, claim.token + 1) == 2
    assert _spent(graph) == (1400, 0)
    assert graph.used.model_calls == 2


def test_what_a_provider_spent_above_its_worst_case_stands_apart() -> None:
    graph, (claim,) = _children(1, cost_microusd=1000)
    worst = Amount(cost_microusd=900)
    ledger.settle(claim, 1, rows.sent(claim, worst), rows.answer(tokens=0, cost_microusd=1500))
    assert _spent(graph) == (1500, 0)
    assert (graph.used_cost_microusd, graph.overrun_cost_microusd) == (900, 600)
    corrections.correct_cost(claim.run_id, -1000, reason="wrong price", actor="ada")
    assert _spent(graph) == (500, 0)
    assert ledger.reserve(claim, rows.call(2), Amount(cost_microusd=500))


def test_the_database_itself_holds_the_graphs_cap() -> None:
    graph, _ = _children(1, cost_microusd=1000)
    with pytest.raises(IntegrityError):
        Graph.objects.filter(pk=graph.pk).update(reserved_cost_microusd=1001)


def test_a_run_without_a_graph_pays_no_statement_for_it(
    django_assert_num_queries: object,
) -> None:
    from django.test.utils import CaptureQueriesContext

    run, claim = rows.claimed()
    days.today(run.task.project_id)
    with CaptureQueriesContext(connection) as queries:
        ledger.reserve(claim, rows.call(), Amount(tokens=1))
    assert not [query for query in queries if '"loops_graph"' in query["sql"]]


@pytest.mark.parametrize("governor", ["", "lead"])
def test_rc083_a_child_that_trips_the_graphs_cost_cap_ends_and_the_graph_reacts_at_once(
    governor: str,
) -> None:
    scenes.agent("worker", "worker", "one", "two", "three")
    graph = g.submitted(
        *(g.node(name, g.one_pass(on_limit="stop")) for name in "abc"),
        limits={"cost_microusd": 2 * g.CALL + 1000},
        governor=governor,
    )
    for name in "ab":
        scenes.step(g.run_of(graph, name))
    child = g.run_of(graph, "c")
    scenes.step(child)
    child.refresh_from_db()
    assert (child.status, child.stop_reason) == ("budget_exhausted", "cost")
    assert child.reason.startswith("What its graph may spend is used. The cost limit")
    graph.refresh_from_db()
    assert graph.reason == f"c escalated: {child.reason}"
    assert graphs.run_pass() == 0
    if governor:
        assert (graph.status, graph.outcome) == ("at_gate", "")
    else:
        assert (graph.status, graph.outcome) == ("ended", "escalated")
    assert graph.used.cost_microusd == 2 * g.CALL


def test_reservations_passes_and_cancels_at_once_take_their_locks_in_one_order() -> None:
    graph, claims = _children(4, tokens=1_000_000)
    worst = Amount(tokens=10)

    def work(number: int) -> None:
        if number >= 4:
            for _ in range(10):
                graphs.react(graph.pk)
            if number == 5:
                graphs.cancel(graph, actor="ada")
            return
        for seq in range(1, 11):
            try:
                reservation = ledger.reserve(claims[number], rows.call(seq), worst)
            except ledger.LeaseLost:
                return
            if ledger.send(reservation):
                answer = rows.answer(tokens=1, cost_microusd=0)
                ledger.settle(claims[number], seq, reservation, answer)
            else:
                ledger.release(reservation)

    answers = rows.together(6, work)
    assert answers == [None] * 6
    graph.refresh_from_db()
    used = Run.objects.aggregate(sum=Sum("used_tokens"))["sum"]
    assert (graph.used.tokens, graph.reserved.tokens) == (used, 0)
