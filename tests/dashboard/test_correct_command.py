"""A wrong charge is corrected by a row of its own."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from loops.models import Reservation, Run
from tests.engine import scenes

pytestmark = pytest.mark.django_db(transaction=True)


def run_charged(**limits: int) -> Run:
    """A run that was charged 6 000 micro-dollars and goes on."""
    task = scenes.pair_task(
        [scenes.code("a"), scenes.code("b")], [scenes.changes("c"), scenes.APPROVED], **limits
    )
    return scenes.step(task.runs.get())


def ledger_of(run: Run) -> list[int]:
    """What the settled rows of its ledger hold."""
    rows = Reservation.objects.filter(run=run, state="settled").order_by("pk")
    return [row.actual_cost_microusd or 0 for row in rows]


def test_rc073_a_correction_keeps_the_wrong_row_and_a_run_without_a_limit_goes_on() -> None:
    run = run_charged()
    Run.objects.filter(pk=run.pk).update(overrun_cost_microusd=91_400_000)
    call_command("correct", run.task.key, "-91.30", "wrong price")
    run.refresh_from_db()
    assert run.used.cost_microusd == 106_000
    assert ledger_of(run) == [3000, 3000, -91_300_000]
    event = run.events.get(kind="corrected")
    assert (event.text, event.data) == ("cost corrected: wrong price", {"microusd": -91_300_000})
    assert scenes.drive(run).status == "succeeded"


def test_what_is_taken_off_can_be_spent_again() -> None:
    run = run_charged(cost_microusd=9_000)
    call_command("correct", run.task.key, "-0.003", "a call that was not billed")
    assert scenes.drive(run).status == "succeeded"
    assert run.used.cost_microusd == 9_000


def test_what_is_added_counts_and_breaks_no_cap() -> None:
    run = run_charged(cost_microusd=9_000)
    call_command("correct", run.task.key, "0.01", "billed twice")
    run = scenes.drive(run)
    assert (run.stop_reason, run.used.cost_microusd) == ("cost", 16_000)


@pytest.mark.parametrize(
    ("task", "usd", "words"),
    [
        ("T-1", "-1", "More is to be taken off than was charged"),
        ("T-1", "much", "no amount of dollars"),
        ("T-1", "NaN", "no amount of dollars"),
        ("T-999", "1", "there is no task T-999"),
        ("four", "1", "there is no task four"),
    ],
)
def test_it_says_what_is_wrong(task: str, usd: str, words: str) -> None:
    run = run_charged()
    task = task.replace("T-1", run.task.key) if task == "T-1" else task
    with pytest.raises(CommandError, match=words):
        call_command("correct", task, usd, "x")
    run.refresh_from_db()
    assert run.used.cost_microusd == 6000
