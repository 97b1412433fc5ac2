"""Each invariant finds the row that breaks it, says which, and is quiet about a sound database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from loops import gates, invariants
from loops.core.errors import ContractError
from loops.core.lifecycle import RunStatus, StopReason
from loops.core.limits import Amount
from loops.models import Attempt, Escalation, Outbox, Reservation, Run
from loops.store import attempts, events, holds, ledger
from loops.store.corrections import correct_cost
from loops.store.holds import Request, Target
from tests.engine import graph_scenes, rows, scenes

pytestmark = pytest.mark.django_db

LONG_AGO = Now() - 100 * rows.AGO
WORST = Amount(model_calls=1, tokens=50, cost_microusd=500)


def half_done() -> Run:
    """A run with one judged attempt and a second one that waits for its claim."""
    run, claim = rows.claimed()
    reservation = rows.sent(claim, WORST)
    ledger.settle(claim, 1, reservation, rows.answer(tokens=20, cost_microusd=200))
    assert attempts.finish(claim, rows.ending())
    attempts.admit(run.pk, 2)
    run.refresh_from_db()
    return run


def at_gate() -> Run:
    """A run that waits for a person."""
    run, claim = rows.claimed()
    ending = rows.ending(RunStatus.AT_GATE, stop_reason=StopReason.ITERATIONS)
    proposal = gates.Proposal(cause=StopReason.ITERATIONS, reason="why", packet={"why": "x"})
    assert gates.park(claim, ending, proposal)
    run.refresh_from_db()
    return run


def ended() -> Run:
    """A run that has succeeded."""
    run, claim = rows.claimed()
    ending = rows.ending(RunStatus.SUCCEEDED, stop_reason=StopReason.ACCEPTED)
    assert attempts.finish(claim, ending)
    run.refresh_from_db()
    return run


def _repeat_a_token(run: Run) -> None:
    Attempt.objects.create(run=run, no=2, status="running", token=1, worker="w", started_at=Now())


def _reserve_under_an_old_token(run: Run) -> None:
    rows.take(run)
    facts = {"run": run, "attempt_no": 2, "seq": 1, "state": "released"}
    Reservation.objects.create(**facts, token=2)
    Reservation.objects.create(**facts, token=1)


def _consume_twice(run: Run) -> None:
    item = run.escalations.get()
    user = User.objects.create(username="alice")
    gates.decide(item.pk, decision="continue", digest=item.digest, user=user, guidance="more")
    events.record(run.pk, "continued", "again", actor="alice")


def _lose_wakeup(run: Run) -> None:
    rows.change(run, admitted_at=LONG_AGO)
    Outbox.objects.filter(run=run).update(sent_at=LONG_AGO)


BREAKS: dict[str, tuple[Callable[[], Run], Callable[[Run], Any]]] = {
    "ended": (ended, lambda run: events.record(run.pk, "claimed", "claimed")),
    "end_has_time": (ended, lambda run: rows.change(run, ended_at=None)),
    "gapless": (half_done, lambda run: rows.change(run, attempt_no=3)),
    "counted": (half_done, lambda run: rows.change(run, iterations=2)),
    "ledger": (half_done, lambda run: rows.change(run, used_tokens=19)),
    "granted": (half_done, lambda run: rows.change(run, limit_iterations=4)),
    "tokens": (half_done, _repeat_a_token),
    "reserved_by_newest": (half_done, _reserve_under_an_old_token),
    "one_live": (lambda: rows.claimed()[0], lambda run: rows.change(run, admitted_at=None)),
    "leases": (lambda: rows.claimed()[0], lambda run: rows.change(run, lease_expires_at=LONG_AGO)),
    "wakeups": (half_done, _lose_wakeup),
    "written": (half_done, lambda run: run.wakeups.all().delete()),
    "waiting": (rows.queued, lambda run: rows.change(run, next_at=LONG_AGO)),
    "deadlines": (half_done, lambda run: rows.change(run, deadline_at=LONG_AGO)),
    "consumed": (at_gate, _consume_twice),
    "asked": (at_gate, lambda run: run.escalations.update(status="withdrawn", decided_at=Now())),
    "signed": (at_gate, lambda run: run.escalations.update(decision="close")),
    "done_and_charged": (half_done, lambda run: run.reservations.update(seq=2)),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_row_is_found_and_named(name: str) -> None:
    make, spoil = BREAKS[name]
    run = make()
    assert invariants.check() == []
    spoil(run)
    statement = next(s for s in invariants.statements(connection.vendor) if s.name == name)
    found = [v for v in invariants.check() if v.rule == statement.rule]
    assert [(v.code, v.subject) for v in found] == [(statement.code, f"run {run.pk}")]
    assert found[0].rule in str(found[0])


def test_every_statement_is_shown_to_find_something() -> None:
    # `within` and `done_once` stand behind constraints, which tests of their own hold to.
    elsewhere = {"within", "done_once", "billed", "graph_end_has_time", "shared"}
    assert {s.name for s in invariants.statements(connection.vendor)} - elsewhere == set(BREAKS)


def test_what_a_sweep_is_yet_to_mend_can_be_left_out() -> None:
    run = half_done()
    rows.change(run, deadline_at=LONG_AGO)
    assert invariants.check(swept=False) == []


def test_a_changed_packet_is_found() -> None:
    run = at_gate()
    Escalation.objects.update(packet={"why": "y"})
    assert [(v.code, v.subject) for v in invariants.check()] == [("I9", f"run {run.pk}")]


def test_the_books_of_a_provider_may_not_be_above_the_ledger() -> None:
    run = half_done()
    right = {"model_calls": 1, "tokens": 20, "cost_microusd": 200}
    assert invariants.check_books({run.pk: right}) == []
    for axis, amount in right.items():
        found = invariants.check_books({run.pk: right | {axis: amount + 1}})
        assert [(v.code, v.subject) for v in found] == [("I4", f"run {run.pk}")]
    assert [v.code for v in invariants.check_books({run.pk + 1: right})] == ["I4"]
    with pytest.raises(ContractError, match="whole numbers"):
        invariants.check_books({run.pk: {"tokens": 1.5}})  # type: ignore[dict-item]


def test_a_call_in_flight_covers_what_it_may_be_billed() -> None:
    run, claim = rows.claimed()
    rows.sent(claim, WORST)
    billed = {"model_calls": 1, "tokens": 50, "cost_microusd": 500}
    assert invariants.check_books({run.pk: billed}) == []


@pytest.mark.django_db(transaction=True)
def test_a_graph_is_the_sum_of_its_runs() -> None:
    scenes.agent("worker", "worker", "done")
    graph = graph_scenes.submitted(graph_scenes.node("a", graph_scenes.one_pass()))
    graph_scenes.drive(graph)
    assert graph.used.model_calls == 1
    assert invariants.check() == []
    type(graph).objects.filter(pk=graph.pk).update(used_tokens=F("used_tokens") + 1)
    assert [(v.code, v.subject) for v in invariants.check()] == [("I3", f"graph {graph.pk}")]


def test_the_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "WINDOW", 2)
    for _ in range(5):
        rows.change(half_done(), used_tokens=19)
    assert len(invariants.check()) == 5
    assert len(invariants.check(most=3)) == 3


def test_a_correction_by_a_person_keeps_the_sums() -> None:
    run = half_done()
    correct_cost(run.pk, -150, reason="wrong price", actor="alice")
    assert invariants.check() == []


def test_who_waits_for_a_reason_breaks_nothing() -> None:
    run = rows.queued()
    rows.change(run, next_at=LONG_AGO)
    assert [violation.code for violation in invariants.check()] == ["I7"]
    holds.hold(Target(project=run.task.project), Request(actor="ada"))
    assert invariants.check() == []
