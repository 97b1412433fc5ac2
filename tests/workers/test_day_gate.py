"""The question at the gate that a used-up day raises: asked once, answered once, or settled."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import F
from django.db.models.functions import Now

from loops import gates, invariants
from loops.figures import outcome_words
from loops.models import DayGrant, Escalation, ProjectDay, Run
from loops.store import days
from loops.store.holds import Request, Target
from tests.engine import rows, scenes
from workers import day_gate, dispatch, stopping

pytestmark = pytest.mark.django_db(transaction=True)

CAP = 10_000_000


def _used_up(queued: int = 3) -> tuple[ProjectDay, list[Run]]:
    """A project that has spent its day, and its waiting runs."""
    day = days.configure(scenes.project(), daily_cost_microusd=CAP)
    ProjectDay.objects.filter(pk=day.pk).update(used_cost_microusd=CAP)
    day.refresh_from_db()
    return day, [rows.queued(next_at=Now() - rows.AGO) for _ in range(queued)]


def _asked() -> Escalation:
    assert day_gate.run_pass() == 1
    return Escalation.objects.get(status="open")


def _decide(item: Escalation, decision: str, **facts: Any) -> Escalation:
    user, _ = User.objects.get_or_create(username="ada")
    return gates.decide(
        item.pk, **{"decision": decision, "digest": item.digest, "user": user, **facts}
    )


def _statuses(runs: list[Run]) -> list[str]:
    return [rows.change(run).status for run in runs]


def test_rc077_one_item_for_the_day_and_nothing_is_started() -> None:
    _, runs = _used_up(queued=25)
    item = _asked()
    assert (day_gate.run_pass(), Escalation.objects.count()) == (0, 1)
    assert dispatch.admit_waiting() == 0
    assert not Run.objects.filter(started_at__isnull=False).exists()
    assert _statuses(runs) == ["at_gate", *["queued"] * 24]
    shown = days.marked(Run.objects.filter(status="queued"))
    assert {outcome_words(run) for run in shown} == {"Waiting for budget"}
    assert "cost cap $10.00, used $10.00, reserved $0.00" in item.reason
    assert item.packet["day"]["cost_microusd"] == {"used": CAP, "reserved": 0, "cap": CAP}
    assert item.allowed == ["approve", "reject"]
    assert not list(invariants.check())


def test_approving_grants_what_was_shown_once_and_everybody_goes_on() -> None:
    day, runs = _used_up()
    item = _asked()
    with pytest.raises(gates.NotPossibleNow, match="changed since"):
        _decide(item, "approve", digest="0" * 64)
    answers = rows.together(4, lambda _: _decide(item, "approve"))
    assert sum(isinstance(answer, Escalation) for answer in answers) == 1
    grant = DayGrant.objects.get()
    assert (grant.cost_microusd, grant.granted_by.username, grant.actor) == (CAP, "ada", "ada")  # type: ignore[union-attr]
    day.refresh_from_db()
    assert day.limit_cost_microusd == 2 * CAP
    assert _statuses(runs) == ["queued"] * 3
    assert dispatch.admit_waiting() == 3
    ProjectDay.objects.update(used_cost_microusd=2 * CAP)
    rows.queued(next_at=Now() - rows.AGO)
    assert _asked().pk != item.pk


def test_rejecting_leaves_all_of_them_waiting_and_nobody_is_asked_again_that_day() -> None:
    _, runs = _used_up()
    _decide(_asked(), "reject")
    assert _statuses(runs) == ["queued"] * 3
    assert (day_gate.run_pass(), dispatch.admit_waiting(), DayGrant.objects.count()) == (0, 0, 0)
    assert not list(invariants.check())


@pytest.mark.parametrize("settled_by", ["midnight", "grant"])
def test_a_question_that_has_settled_is_refused_and_taken_back(settled_by: str) -> None:
    day, runs = _used_up()
    item = _asked()
    if settled_by == "midnight":
        yesterday = {"date": F("date") - timedelta(days=1), "ends_at": Now()}
        ProjectDay.objects.update(starts_at=Now() - timedelta(hours=25), **yesterday)
    else:
        days.grant(day, tokens=0, microusd=1, user=None, actor="ada")
    granted = DayGrant.objects.count()
    with pytest.raises(gates.NotPossibleNow, match="day is over, or somebody has granted more"):
        _decide(item, "approve")
    assert (_statuses(runs)[0], DayGrant.objects.count()) == ("at_gate", granted)
    assert day_gate.run_pass() == 1
    item.refresh_from_db()
    assert (item.status, _statuses(runs)) == ("withdrawn", ["queued"] * 3)
    with pytest.raises(gates.NotPossibleNow, match="the day is over, or more was granted"):
        _decide(item, "approve")
    assert dispatch.admit_waiting() == 3
    assert not list(invariants.check())


def test_tenders_that_look_at_the_same_time_ask_once() -> None:
    _used_up(queued=6)
    assert not [one for one in rows.together(4, lambda _: day_gate.run_pass()) if one not in (0, 1)]
    assert Escalation.objects.count() == Run.objects.filter(status="at_gate").count() == 1


def test_a_cancelled_run_hands_the_question_on_and_a_paused_project_is_not_asked() -> None:
    _, runs = _used_up()
    first = _asked()
    assert gates.cancel(runs[0], actor="ada")
    second = _asked()
    assert (first.run, second.run) == (runs[0], runs[1])
    stopping.pause(Target(project=scenes.project()), Request(actor="ada"))
    assert gates.cancel(runs[1], actor="ada")
    assert day_gate.run_pass() == 0


def test_a_run_that_the_day_refused_goes_on_after_the_grant_where_it_was() -> None:
    days.configure(scenes.project(), daily_cost_microusd=5_000)
    task = scenes.pair_task([scenes.code("one")], [scenes.APPROVED])
    run = scenes.step(task.runs.get())
    assert (run.status, run.used.model_calls) == ("queued", 1)
    item = _asked()
    assert item.packet["raises_day"]["cost_microusd"] == 5_000
    _decide(item, "approve")
    scenes.drive(run)
    assert (run.status, run.attempt_no, run.used.model_calls) == ("succeeded", 2, 2)
    assert run.used.cost_microusd == 6_000
    assert not list(invariants.check())
