"""The credit of a project that had no work. In a round everybody admitted does one attempt."""

from __future__ import annotations

from collections import Counter
from itertools import count
from statistics import quantiles
from typing import Any

import pytest

from loops.models import Project, Run
from tests.engine import scenes
from tests.workers.queues import finish, many
from workers import dispatch
from workers.newcomers import EARNED_BY, ROUNDS
from workers.turns import EXTRA_TURN

pytestmark = pytest.mark.django_db(transaction=True)

SLOTS = 4


@pytest.fixture(autouse=True)
def four_slots(settings: Any) -> None:
    settings.LOOPWARDEN_SLOTS = SLOTS


def _round(attempts_each: int = 1) -> Counter[str]:
    """One round; how many attempts of which project."""
    dispatch.admit_waiting()
    served = list(Run.objects.filter(admitted_at__isnull=False).select_related("task__project"))
    for run in served:
        finish(run, attempts_each=attempts_each)
    return Counter(run.task.project.slug for run in served)


def _waits(slug: str) -> list[int]:
    """Rounds until the first attempt of each of ten runs of three attempts."""
    task = many(slug, 10).task_id
    waits: list[int] = []
    for number in count():
        dispatch.admit_waiting()
        begun = Run.objects.filter(task=task, admitted_at__isnull=False, attempt_no=1)
        waits += [number] * begun.count()
        if len(waits) == 10:
            break
        _round(3)
    return waits


def _p95(waits: list[int]) -> float:
    return quantiles(waits, n=20, method="inclusive")[-1]


def _away_for(admissions: int) -> None:
    """The large project had so many while the others had no work."""
    for _ in range(admissions // SLOTS):
        assert _round() == {"large": SLOTS}


def test_ten_runs_wait_at_most_twice_as_long_beside_ten_thousand() -> None:
    alone = _p95(_waits("alone"))
    while _round(3):
        pass
    many("large", 10_000)
    _away_for(ROUNDS * SLOTS)
    dispatch.admit_waiting()
    # All slots were taken just before: the worst moment to come.
    beside = _p95(_waits("small"))
    assert alone == 6
    assert beside <= 2 * alone


def test_a_new_project_goes_first_until_its_credit_is_used_and_lets_every_eighth_pass() -> None:
    many("large", 100)
    _away_for(ROUNDS * SLOTS)
    many("small", 40)
    rounds = [_round() for _ in range(8)]
    credit = ROUNDS * SLOTS
    passed = len([n for n in range(credit, 2 * credit) if n % EXTRA_TURN == EXTRA_TURN - 1])
    used = sum(rounds[:ROUNDS], Counter())
    assert used == {"small": credit - passed, "large": passed}
    assert all(one == {"small": 2, "large": 2} for one in rounds[ROUNDS + 1 :])
    assert Project.objects.get(slug="small").credit == 0


def test_the_large_project_goes_on_however_many_newcomers_there_are() -> None:
    many("large", 100)
    _away_for(ROUNDS * SLOTS)
    served: Counter[str] = Counter()
    for number in range(8):
        many(f"new-{number}", 4)
        served += _round()
    assert served["large"] >= 8 * SLOTS // EXTRA_TURN


def test_coming_and_going_earns_no_more_than_was_left_to_others() -> None:
    many("large", 200)
    _away_for(ROUNDS * SLOTS)
    many("small", ROUNDS * SLOTS)
    while _round()["small"]:
        pass
    served: Counter[str] = Counter()
    for _ in range(5):
        many("small", SLOTS)
        served += _round()
        served += _round()
        Run.objects.filter(task__project__slug="small", status="queued").delete()
        served += _round()
    assert Project.objects.get(slug="small").credit <= 1
    assert served["small"] <= served["large"]


def test_who_is_away_for_long_earns_no_more_than_a_new_project_gets() -> None:
    many("small", ROUNDS * SLOTS)
    while _round():
        pass
    many("large", 200)
    _away_for(EARNED_BY * (ROUNDS + 1) * SLOTS)
    many("small", 1)
    dispatch.admit_waiting()
    small = Project.objects.get(slug="small")
    assert (small.credit, small.away_since) == (ROUNDS * SLOTS - 1, None)


def test_who_waits_earns_nothing() -> None:
    """Its runs cannot go, yet it has work: that is no time away."""
    many("small", ROUNDS * SLOTS)
    while _round():
        pass
    scenes.agent("full", "coder", max_running=0)
    many("small", 2, agents={"coder": "full"})
    many("large", 100)
    _round()
    _away_for(EARNED_BY * SLOTS)
    many("small", 1)
    dispatch.admit_waiting()
    small = Project.objects.get(slug="small")
    assert (small.credit, small.away_since) == (0, None)
