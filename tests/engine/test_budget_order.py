"""The budget procedure in any order of its steps, with losses of Redis and sweeps in between.

Every step of a call is a rule of its own, so that anything may happen between two of them. Costs
lean to the largest that fits: with even ones no order ever comes near a cap. The provider's books
are kept here, outside of the system.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from loops import feed
from loops.core.errors import LimitReached
from loops.core.limits import Amount
from loops.models import Budget, Graph, Project, ProjectDay, Reservation, Run
from loops.store import attempts, days, ledger
from tests.engine import rows, scenes
from workers import budgets

pytestmark = pytest.mark.django_db(transaction=True)

RUN_CAP, GRAPH_CAP, DAY_CAP = 300, 400, 500
COSTS = st.sampled_from([100, 150, 300, 300, 300])


@dataclass
class Call:
    """One call on its way through the procedure."""

    claim: attempts.Claim
    booking: ledger.Booking
    worst: int


class Procedure(RuleBasedStateMachine):
    """Two runs of a graph and one beside it, in one project."""

    reserved: Bundle[Call] = Bundle("reserved")
    admitted: Bundle[Call] = Bundle("admitted")
    sent: Bundle[Call] = Bundle("sent")
    settled: Bundle[Any] = Bundle("settled")

    def __init__(self) -> None:
        super().__init__()
        feed.client().flushall()
        slug = f"p{Project.objects.count()}"
        days.configure(scenes.project(slug), daily_tokens=DAY_CAP)
        self.graph = Graph.objects.create(
            project=scenes.project(slug), title="g", aim="g", limit_tokens=GRAPH_CAP
        )
        self.claims = []
        for graph in (self.graph, self.graph, None):
            run, claim = rows.claimed(slug, limit_tokens=RUN_CAP)
            rows.change(run, graph=graph)
            self.claims.append(claim)
        self.day = days.today(scenes.project(slug).pk)
        self.seq = 0
        self.billed: dict[int, int] = {claim.run_id: 0 for claim in self.claims}
        """What the provider wrote down, by run."""

    def _reserve(self, claim: attempts.Claim, worst: int) -> Call | None:
        self.seq += 1
        try:
            booking = ledger.reserve(claim, rows.call(self.seq), Amount(tokens=worst))
        except (LimitReached, ledger.DayUsedUp):
            return None
        return Call(claim, booking, worst)

    def _admit(self, call: Call) -> bool:
        try:
            if budgets.admit(call.booking, Amount(tokens=call.worst)) is None:
                return True
        except budgets.Voided:
            return False
        ledger.release(call.booking)
        return False

    def _send(self, call: Call) -> bool:
        if ledger.send(call.booking):
            self.billed[call.claim.run_id] += call.worst
            return True
        ledger.release(call.booking)
        budgets.settle(call.booking, Amount())
        return False

    @rule(target=reserved, which=st.integers(0, 2), worst=COSTS)
    def reserve(self, which: int, worst: int) -> Any:
        """On the rows."""
        call = self._reserve(self.claims[which], worst)
        return _some(call)

    @rule(target=admitted, call=consumes(reserved))
    def admit(self, call: Call) -> Any:
        """In the counters, which are rebuilt when they are gone."""
        return _some(call if self._admit(call) else None)

    @rule(target=sent, call=consumes(admitted))
    def send(self, call: Call) -> Any:
        """The bytes go out, and the provider bills what it likes up to the worst case."""
        return _some(call if self._send(call) else None)

    @rule(target=settled, call=consumes(sent), share=st.sampled_from([1, 2]))
    def settle(self, call: Call, share: int) -> Any:
        """On the rows; the counters hear of it later, or never."""
        actual = call.worst // share
        self.billed[call.claim.run_id] -= call.worst - actual
        answer = rows.answer(tokens=actual, cost_microusd=0)
        ledger.settle(call.claim, self.seq, call.booking, answer)
        return (call, actual)

    @rule(one=consumes(settled))
    def tell_the_counters(self, one: tuple[Call, int]) -> None:
        """They fall to what was used."""
        call, actual = one
        budgets.settle(call.booking, Amount(tokens=actual))

    @rule()
    def lose_redis(self) -> None:
        """All of it."""
        feed.client().flushall()

    @rule(which=st.integers(0, 2))
    def rebuild(self, which: int) -> None:
        """Somebody else asks after a loss."""
        feed.client().flushall()
        for scope in ledger.scopes_of(Run.objects.get(pk=self.claims[which].run_id)):
            budgets.rebuild(scope)

    @rule(which=st.integers(0, 2))
    def sweep(self, which: int) -> None:
        """The worker is taken for dead: unsent is given back, sent is charged in full."""
        ledger.close_lost(self.claims[which].run_id, 0)

    @rule(which=st.integers(0, 2), again=st.booleans(), worst=COSTS)
    def rebuild_in_pieces(self, which: int, again: bool, worst: int) -> None:
        """Between the sum and its installation Redis is lost, and perhaps a call goes out."""
        claim = self.claims[which]

        def meanwhile() -> None:
            feed.client().flushall()
            call = self._reserve(claim, worst)
            if again and call and not self._admit(call):
                call = self._reserve(claim, worst)
            if again and call and self._admit(call):
                self._send(call)
                feed.client().flushall()

        for scope in ledger.scopes_of(Run.objects.get(pk=claim.run_id)):
            feed.client().delete(budgets.key_of(scope))
            _with_a_pause(lambda scope=scope: budgets.rebuild(scope), meanwhile)

    @invariant()
    def what_must_hold_after_every_step(self) -> None:
        """By the rows, by the provider's own books, and in the counters."""
        every = list(Reservation.objects.filter(run__in=self.billed))
        for row, cap, runs in self._rows():
            booked = [one for one in every if one.run_id in runs]
            held = sum(_held(one) for one in booked)
            assert row.used.tokens + row.reserved.tokens == held <= cap, row
            assert sum(self.billed[pk] for pk in runs) <= held, row
            # Counters may be gone or stand above the ledger, never below what was sent.
            sent = sum(_held(one) for one in booked if one.state != "reserved")
            assert rows.counters(row).get("tokens", sent) >= sent, row

    def _rows(self) -> list[tuple[Budget, int, set[int]]]:
        runs = list(Run.objects.filter(pk__in=self.billed))
        graph, day = Graph.objects.get(pk=self.graph.pk), ProjectDay.objects.get(pk=self.day.pk)
        return [
            *((run, RUN_CAP, {run.pk}) for run in runs),
            (graph, GRAPH_CAP, {run.pk for run in runs if run.graph_id}),
            (day, DAY_CAP, set(self.billed)),
        ]


def _held(reservation: Reservation) -> int:
    match reservation.state:
        case "reserved" | "in_flight" | "unknown":
            return reservation.est_tokens
        case "settled":
            return reservation.actual_tokens or 0
    return 0


def _some(call: Call | None) -> Any:
    return multiple() if call is None else call


def _with_a_pause(rebuild: Callable[[], Any], meanwhile: Callable[[], None]) -> None:
    void_and_sum = ledger.void_and_sum

    def paused(scope: ledger.Scope) -> ledger.Held:
        held = void_and_sum(scope)
        patch.undo()
        meanwhile()
        return held

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "void_and_sum", paused)
        rebuild()


def test_no_order_of_steps_losses_and_sweeps_overspends() -> None:
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=OFF")
    run_state_machine_as_test(
        Procedure,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            # Shrinking takes minutes; the order as it was found says enough.
            phases=[Phase.generate],
        ),
    )
