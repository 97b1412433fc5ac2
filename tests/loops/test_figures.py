"""The figures of a run as people see them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from loops import clock, figures
from loops.core.lifecycle import RunStatus, StopReason
from loops.core.money import dollars
from loops.figures import Meter
from loops.models import Attempt, Run


def _run(**facts: Any) -> Run:
    usual = {"status": "queued", "limit_iterations": 5, "limit_errors": 2}
    return Run(**{**usual, **facts})


def _attempt(no: int, **facts: Any) -> Attempt:
    usual = {"status": "judged", "counted": True, "judgment": "continue", "label": ""}
    return Attempt(no=no, **{**usual, **facts})


def _meter(used: int, reserved: int = 0, cap: int | None = 1_000) -> Meter:
    return Meter(axis="tokens", title="Tokens", used=used, reserved=reserved, cap=cap)


def test_the_rail_has_one_slot_for_each_allowed_iteration() -> None:
    attempts = [
        _attempt(1, label="changes requested"),
        _attempt(2, status="error", counted=False, label="error"),
        _attempt(3, label="checks failed"),
        _attempt(4, judgment="success", label="approved"),
    ]
    found = figures.rail(_run(iterations=3), attempts)
    assert [slot.tone for slot in found] == ["changes", "checks", "pass", "", ""]
    assert [slot.counted for slot in found] == [True] * 3 + [False] * 2
    assert found[2].title == "4: approved"


def test_the_rail_shows_the_iteration_that_runs() -> None:
    found = figures.rail(_run(status="running", iterations=1), [_attempt(1)])
    assert [slot.tone for slot in found] == ["changes", "run", "", "", ""]


@pytest.mark.parametrize(("iterations", "limit"), [(0, 1_000), (500, 1_000), (30, 30), (30, 31)])
def test_the_rail_of_a_long_run_stays_short(iterations: int, limit: int) -> None:
    attempts = [_attempt(no) for no in range(1, iterations + 1)]
    found = figures.rail(_run(iterations=iterations, limit_iterations=limit), attempts)
    assert len(found) <= figures.MOST_SLOTS
    used = [slot for slot in found if slot.counted]
    assert len(used) == min(iterations, figures.MOST_SLOTS - 1)


@pytest.mark.parametrize(
    ("meter", "used", "reserved", "heat"),
    [
        (_meter(0), 0, 0, ""),
        (_meter(740), 74, 0, ""),
        (_meter(700, 50), 70, 5, "warm"),
        (_meter(750), 75, 0, "warm"),
        (_meter(900, 41), 90, 5, "hot"),
        (_meter(950), 95, 0, "hot"),
        (_meter(1_000), 100, 0, "hot"),
        (_meter(1_300, 50), 100, 0, "hot"),
        (_meter(0, 1), 0, 1, ""),
        (_meter(500, cap=None), 0, 0, ""),
    ],
)
def test_a_meter_says_how_full_it_is(meter: Meter, used: int, reserved: int, heat: str) -> None:
    assert (meter.used_percent, meter.reserved_percent, meter.heat) == (used, reserved, heat)


def test_the_meters_show_what_is_capped_or_used() -> None:
    run = _run(
        limit_tokens=100,
        used_cost_microusd=5,
        overrun_cost_microusd=2,
        reserved_model_calls=1,
    )
    found = {meter.axis: meter for meter in figures.meters(run)}
    assert set(found) == {"tokens", "cost_microusd", "model_calls"}
    assert (found["cost_microusd"].used, found["cost_microusd"].cap) == (7, None)
    assert found["model_calls"].reserved == 1


@pytest.mark.django_db
@pytest.mark.parametrize("status", ["queued", "running", "at_gate"])
def test_a_deadline_holds_the_moment_it_passes(status: str) -> None:
    now = clock.now()
    run = _run(status=status, deadline_at=now)
    assert figures.effective_status(run, now - timedelta(microseconds=1))[0] == status
    reached = (RunStatus.BUDGET_EXHAUSTED, StopReason.DEADLINE)
    assert figures.effective_status(run, now) == reached
    assert (figures.outcome_words(run), figures.tone(run)) == ("Limit reached", "changes")


def test_an_end_before_the_deadline_stays_what_it_was() -> None:
    past = timezone.now() - timedelta(days=1)
    run = _run(status="succeeded", stop_reason="accepted", deadline_at=past)
    assert figures.effective_status(run) == (RunStatus.SUCCEEDED, "accepted")


@pytest.mark.parametrize("status", list(RunStatus))
def test_every_status_has_its_words_and_its_colour(status: RunStatus) -> None:
    run = _run(status=status)
    assert figures.outcome_words(run)
    assert figures.tone(run)


def test_rc061_a_run_says_whether_a_limit_stopped_it() -> None:
    assert figures.is_limit(_run(status="budget_exhausted", stop_reason="iterations"))
    assert not figures.is_limit(_run(status="succeeded", stop_reason="accepted"))
    assert not figures.is_limit(_run())


@pytest.mark.parametrize(
    ("microusd", "shown"),
    [
        (0, "0.00"),
        (1, "0.000001"),
        (3_000, "0.003"),
        (100_000, "0.10"),
        (123_456, "0.123456"),
        (1_000_000, "1.00"),
        (1_234_567, "1.23"),
        (12_000_000_000, "12000.00"),
    ],
)
def test_dollars_have_cents_and_more_digits_only_where_they_matter(
    microusd: int, shown: str
) -> None:
    assert dollars(microusd) == shown
