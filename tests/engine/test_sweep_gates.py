"""Every crash point around a gate and an effect: decided once, done at most once (L2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from loops.core.limits import Amount
from loops.models import Escalation, Run
from tests.engine import forked, plan_tasks, scenes
from tests.engine.disturbed import WAYS, Disturbed, rows_of
from tests.engine.forked import Forked

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.worker,
    pytest.mark.usefixtures("forks"),
]

AT_A_GATE = ("parked", "deciding")
# What a person finds out about the payment after the crash, where nobody else can know.
OF_AN_EFFECT = {"approved": "", "sent": "not_happened", "answered": "happened", "recorded-1": ""}


@pytest.fixture(autouse=True)
def _tools(settings: Any) -> None:
    settings.LOOPWARDEN_TOOLS = plan_tasks.TOOLS


def at_the_gate(book: Path, asked: int = 1) -> Run:
    """A payment that waits for its approval."""
    get_user_model().objects.create(username="ada")
    run = scenes.drive(plan_tasks.paying(book, asked=asked).runs.get())
    assert run.status == "at_gate"
    return run


def assert_paid_once(run: Run, book: Path) -> None:
    """One line in the bank's own book, and every item of the queue decided once."""
    run.refresh_from_db()
    assert (run.status, run.stop_reason) == ("succeeded", "accepted")
    assert len(book.read_text().splitlines()) == 1
    assert set(Escalation.objects.values_list("status", flat=True)) == {"decided"}
    numbers = list(run.attempts.order_by("no").values_list("no", flat=True))
    assert numbers == list(range(1, run.attempt_no))
    assert run.reserved == Amount()


@pytest.mark.parametrize("mode", WAYS)
def test_the_opening_of_a_gate(mode: str, log: Path, tmp_path: Path) -> None:
    book = tmp_path / "book"
    run = plan_tasks.paying(book).runs.get()
    case = Disturbed(log, "parked", mode)
    case.dies()
    case.time_passes()
    case.others_work()
    case.comes_back()
    assert Escalation.objects.count() == 1
    plan_tasks.decide(run, "approve")
    case.others_work()
    assert_paid_once(run, book)


@pytest.mark.parametrize("mode", WAYS)
def test_the_decision_at_a_gate(mode: str, log: Path, tmp_path: Path) -> None:
    book = tmp_path / "book"
    run = at_the_gate(book)
    item = plan_tasks.open_item(run)
    case = Disturbed(log, "deciding", mode)
    case.dies(forked.decide, item.pk, item.digest, "approve")
    case.time_passes()
    again = Forked(log, forked.decide, item.pk, item.digest, "approve").ended()
    # A frozen one still had its rows, so its decision was the first.
    assert again == (1 if mode == "stop" else 0)
    case.others_work()
    assert run.events.filter(kind="answered").count() == 1
    assert_paid_once(run, book)


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("point", OF_AN_EFFECT)
def test_an_effect(point: str, mode: str, log: Path, tmp_path: Path) -> None:
    book = tmp_path / "book"
    found_out = OF_AN_EFFECT[point]
    # What did not happen is asked for again, as an action that needs an approval of its own.
    run = at_the_gate(book, asked=2 if found_out == "not_happened" else 1)
    plan_tasks.decide(run, "approve")
    case = Disturbed(log, point, mode)
    case.dies()
    case.time_passes()
    case.others_work()
    if found_out:
        run.refresh_from_db()
        assert run.stop_reason == "outcome_unknown"
        assert book.exists() == (found_out == "happened")
        plan_tasks.decide(run, found_out)
        case.others_work()
    if found_out == "not_happened":
        plan_tasks.decide(run, "approve")
        case.others_work()
    before = rows_of(run)
    case.comes_back()
    assert rows_of(run) == before
    assert_paid_once(run, book)
