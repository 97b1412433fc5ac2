"""What a project may spend in a day: refusals wait, and nothing is failed for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.db.models import F
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from loops import feed
from loops.core.errors import LimitReached
from loops.core.limits import Amount
from loops.day_figures import why_closed
from loops.figures import outcome_words
from loops.models import ProjectDay, Run
from loops.store import corrections, days, ledger
from tests.engine import graph_scenes as g
from tests.engine import rows, scenes
from workers import budgets, dispatch

pytestmark = pytest.mark.django_db(transaction=True)

CALL = Amount(model_calls=1, tokens=100, cost_microusd=1_000)


def _capped(**caps: Any) -> ProjectDay:
    return days.configure(scenes.project(), **{f"daily_{axis}": cap for axis, cap in caps.items()})


def _spend(claim: Any, cost: int, seq: int = 1) -> None:
    worst = Amount(model_calls=1, cost_microusd=cost)
    ledger.settle(
        claim, seq, rows.sent(claim, worst, seq), rows.answer(tokens=0, cost_microusd=cost)
    )


def _midnight(day: ProjectDay) -> None:
    """The day is over since a moment."""
    ProjectDay.objects.filter(pk=day.pk).update(
        date=F("date") - timedelta(days=1), starts_at=Now() - timedelta(hours=25), ends_at=Now()
    )
    day.refresh_from_db()


def _figures(day: ProjectDay) -> tuple[int, int]:
    day.refresh_from_db()
    return day.used.cost_microusd, day.reserved.cost_microusd


def test_runs_of_a_project_share_its_day_and_a_refusal_names_all_figures() -> None:
    day = _capped(cost_microusd=2_500)
    claims = [rows.claimed()[1] for _ in range(3)]
    _spend(claims[0], 1_000)
    rows.sent(claims[1], CALL)
    with pytest.raises(ledger.DayUsedUp) as caught:
        ledger.reserve(claims[2], rows.call(), CALL)
    refusal = caught.value.refusal
    assert (refusal.owner, refusal.axis, refusal.used) == ("project-day", "cost", 1_000)
    assert (refusal.reserved, refusal.asked, refusal.cap) == (1_000, 1_000, 2_500)
    assert "Cap $0.0025, used $0.001, reserved $0.001, asked $0.001." in str(caught.value)
    # What is missing is held by a call in flight, so the day is not over.
    assert caught.value.goes_on_at is None
    assert not days.used_up().exists()
    assert _figures(day) == (1_000, 1_000)


def test_a_refusal_by_the_day_takes_nothing_from_run_and_graph() -> None:
    _capped(tokens=150)
    names = [f"n{at}" for at in range(2)]
    graph = g.submitted(*(g.node(name, g.retry()) for name in names), parallel=True)
    one, other = (rows.take(rows.change(g.run_of(graph, n), admitted_at=Now())) for n in names)
    rows.sent(one, CALL)
    with pytest.raises(ledger.DayUsedUp):
        ledger.reserve(other, rows.call(), CALL)
    run = Run.objects.get(pk=other.run_id)
    graph.refresh_from_db()
    assert (run.reserved.tokens, run.reservations.count(), graph.reserved.tokens) == (0, 0, 100)


def test_counters_that_refuse_for_the_day_leave_those_of_run_and_graph_alone() -> None:
    graph = g.submitted(g.node("a", g.retry()))
    claim = rows.take(rows.change(g.run_of(graph, "a"), admitted_at=Now()))
    for scope in ledger.reserve(claim, rows.call(), CALL).scopes:
        budgets.rebuild(scope)
    booking = ledger.reserve(claim, rows.call(), CALL)
    kinds = [scope.kind for scope in booking.scopes]
    assert kinds == ["run", "graph", "day"]
    day = ProjectDay.objects.get()
    feed.client().hset(budgets.key_of(rows.scope(day)), "tokens", 950)
    capped = [
        ledger.Scope(s.kind, s.id, (None, None, 1_000, None) if s.kind == "day" else s.caps)
        for s in booking.scopes
    ]
    booking.scopes = tuple(capped)
    assert budgets.admit(booking, CALL) == capped[2]
    assert [rows.counters(row)["tokens"] for row in (Run.objects.get(), graph)] == [0, 0]
    assert rows.counters(day)["tokens"] == 950


def test_a_call_is_settled_on_the_day_that_it_was_reserved_on() -> None:
    day = _capped(cost_microusd=5_000)
    run, claim = rows.claimed()
    sent, unsent = rows.sent(claim, CALL), ledger.reserve(claim, rows.call(2), CALL)
    rows.sent(claim, CALL, 3)
    _midnight(day)
    next_day = days.today(run.task.project_id)
    assert next_day.pk != day.pk
    ledger.settle(claim, 1, sent, rows.answer(tokens=7, cost_microusd=700))
    ledger.release(unsent)
    assert (_figures(day), _figures(next_day)) == ((700, 1_000), (0, 0))
    assert ledger.close_lost(run.pk, claim.token + 1) == 1
    assert (_figures(day), _figures(next_day)) == ((1_700, 0), (0, 0))


def test_the_next_day_begins_with_the_caps_and_without_the_grants_of_the_last() -> None:
    day = _capped(cost_microusd=1_000)
    _, claim = rows.claimed()
    _spend(claim, 1_000)
    days.grant(day, tokens=5, microusd=500, user=None, actor="ada")
    assert ledger.reserve(claim, rows.call(2), Amount(cost_microusd=500))
    with pytest.raises(ledger.DayUsedUp) as caught:
        ledger.reserve(claim, rows.call(3), Amount(cost_microusd=600))
    assert caught.value.goes_on_at == day.ends_at
    _midnight(day)
    assert ledger.reserve(claim, rows.call(4), CALL)
    assert days.today(scenes.project().pk).limit_cost_microusd == 1_000
    (grant,) = day.grants.all()
    assert (grant.cost_microusd, grant.tokens, grant.actor) == (500, 5, "ada")


def test_a_call_larger_than_the_whole_day_is_a_limit_and_does_not_wait_for_ever() -> None:
    scenes.agent("worker", "worker", "one")
    _capped(cost_microusd=g.CALL - 1)
    graph = g.submitted(g.node("a", g.one_pass(on_limit="gate")))
    run = scenes.step(g.run_of(graph, "a"))
    assert (run.status, run.stop_reason) == ("at_gate", "cost")
    assert run.reason.startswith("One call asks for more than its project may spend in a day.")
    assert "Cap $0.002999, used $0.00, reserved $0.00, asked $0.003." in run.reason


def test_rc077_no_run_is_started_while_the_day_is_used_up() -> None:
    day = _capped(cost_microusd=10_000_000)
    _, claim = rows.claimed()
    _spend(claim, 10_000_000)
    queued = [rows.queued(next_at=Now() - rows.AGO) for _ in range(25)]
    elsewhere = rows.queued("other", next_at=Now() - rows.AGO)
    assert dispatch.admit_waiting() == 1
    assert rows.change(elsewhere).admitted_at is not None
    assert not Run.objects.filter(pk__in=[run.pk for run in queued], admitted_at__isnull=False)
    shown = days.marked(Run.objects.filter(pk__in=[run.pk for run in queued]))
    assert {outcome_words(run) for run in shown} == {"Waiting for budget"}
    days.grant(day, tokens=0, microusd=1, user=None, actor="ada")
    assert dispatch.admit_waiting() > 0
    rows.sent(claim, Amount(cost_microusd=1), 2)
    _midnight(day)
    assert {outcome_words(run) for run in shown.all()} == {"Queued"}


def test_a_run_that_the_day_refuses_is_handed_back_and_goes_on_where_it_was() -> None:
    day = _capped(cost_microusd=5_000)
    task = scenes.pair_task([scenes.code("one")], [scenes.APPROVED])
    run = scenes.step(task.runs.get())
    assert (run.status, run.attempt_no, run.errors, run.iterations) == ("queued", 1, 0, 0)
    event = run.events.get(kind="handed_back")
    assert "on cost. Cap $0.005, used $0.003, reserved $0.00, asked $0.003." in event.text
    day.refresh_from_db()
    assert day.closed
    assert dispatch.admit_waiting() == 0
    assert "cost cap $0.005, used $0.003, reserved $0.00" in why_closed(day)
    days.grant(day, tokens=0, microusd=1_000, user=None, actor="ada")
    scenes.drive(run)
    assert (run.status, run.used.model_calls, run.used.cost_microusd) == ("succeeded", 2, 6_000)
    assert _figures(day) == (6_000, 0)


def test_a_run_that_waits_for_calls_in_flight_looks_again_soon() -> None:
    _capped(cost_microusd=5_000)
    task = scenes.pair_task([scenes.code("one")], [scenes.APPROVED])
    _, other = rows.claimed()
    held = rows.sent(other, Amount(cost_microusd=4_000))
    run = scenes.step(task.runs.get())
    assert (run.status, days.used_up().exists()) == ("queued", False)
    assert run.next_at > run.updated_at + timedelta(seconds=20)
    ledger.release(held)
    ledger.settle(other, 1, held, rows.answer(tokens=0, cost_microusd=0))
    assert scenes.step(run).used.cost_microusd == 3_000


def test_a_refusal_that_a_grant_overtook_closes_nothing() -> None:
    day = _capped(cost_microusd=1_000)
    refusal = LimitReached("cost", used=0, reserved=0, asked=1_500, cap=1_000)
    days.grant(day, tokens=0, microusd=500, user=None, actor="ada")
    assert not days.close(day, refusal)
    day.refresh_from_db()
    assert not day.closed


@pytest.mark.parametrize(
    ("cap", "limit", "closed"),
    [(6_000, 6_500, False), (2_500, 3_000, False), (2_499, 3_000, True), (None, None, False)],
)
def test_a_new_cap_holds_for_today_with_what_was_granted_and_never_below_what_is_held(
    cap: int | None, limit: int | None, closed: bool
) -> None:
    day = _capped(cost_microusd=5_000)
    _, claim = rows.claimed()
    _spend(claim, 2_000)
    held = rows.sent(claim, CALL, 2)
    days.grant(day, tokens=0, microusd=500, user=None, actor="ada")
    day = _capped(cost_microusd=cap)
    assert (day.limit_cost_microusd, day.closed, day.used_up) == (limit, closed, closed)
    # What the day gets back does not open it again.
    ledger.settle(claim, 2, held, rows.answer(tokens=0, cost_microusd=0))
    if closed:
        with pytest.raises(ledger.DayUsedUp):
            ledger.reserve(claim, rows.call(3), Amount(cost_microusd=1))


def test_another_time_zone_ends_the_day_of_the_old_one() -> None:
    project = scenes.project()
    days.configure(project, time_zone="Pacific/Kiritimati")
    east = days.today(project.pk)
    days.configure(project, time_zone="Pacific/Niue")
    west = days.today(project.pk)
    assert west.pk != east.pk
    assert days.current().get() == west
    days.configure(project, time_zone="Pacific/Kiritimati")
    assert days.current().get() == east


def test_threads_that_open_the_same_day_find_one() -> None:
    project = scenes.project()
    found = rows.together(6, lambda _: days.today(project.pk).pk)
    assert len(set(map(str, found))) == 1
    assert ProjectDay.objects.count() == 1


def test_calls_of_no_cost_pay_no_statement_for_the_day_and_are_not_refused_by_it() -> None:
    day = _capped(tokens=1)
    ProjectDay.objects.filter(pk=day.pk).update(closed=True)
    _, claim = rows.claimed()
    with CaptureQueriesContext(connection) as queries:
        assert ledger.reserve(claim, rows.call(), Amount(tool_calls=1)).scopes[-1].kind == "run"
    assert not [query for query in queries if "loops_projectday" in query["sql"]]


def test_what_a_provider_spent_above_its_worst_case_uses_up_the_day() -> None:
    day = _capped(cost_microusd=1_500)
    run, claim = rows.claimed()
    over = rows.answer(tokens=0, cost_microusd=1_600)
    ledger.settle(claim, 1, rows.sent(claim, CALL), over)
    day.refresh_from_db()
    assert (day.used_cost_microusd, day.overrun_cost_microusd) == (1_000, 600)
    assert days.used_up().get() == day
    assert day.used_up
    corrections.correct_cost(run.pk, -1_600, reason="wrong price", actor="ada")
    assert _figures(day) == (0, 0)
    assert ledger.reserve(claim, rows.call(2), CALL)


def test_the_database_itself_holds_the_days_cap() -> None:
    day = _capped(cost_microusd=1_000)
    with pytest.raises(IntegrityError):
        ProjectDay.objects.filter(pk=day.pk).update(reserved_cost_microusd=1_001)


def test_a_reservation_of_an_older_worker_settles_without_a_day() -> None:
    run, claim = rows.claimed()
    reservation = rows.sent(claim, CALL)
    run.reservations.update(day=None)
    assert ledger.settle(claim, 1, reservation, rows.answer(tokens=1, cost_microusd=1))
    assert run.reservations.get().state == "settled"
