"""Whose turn it is, counted in admissions: shares by weight, priority, and nobody starves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from loops import admission
from loops.models import Lane, Project, Run
from tests.engine import rows, scenes
from tests.workers.queues import finish, many
from workers import dispatch, sweeper
from workers.turns import EXTRA_TURN, Turns

pytestmark = pytest.mark.django_db(transaction=True)


def _serve(most: int, then: Callable[[Run], object] = lambda _: None) -> list[Run]:
    """Admit and finish one run after the other; who was served, in order."""
    served: list[Run] = []
    while len(served) < most:
        dispatch.admit_waiting()
        holding = list(
            Run.objects.filter(admitted_at__isnull=False).select_related("task__project")
        )
        if not holding:
            break
        for run in holding:
            finish(run)
            served.append(run)
            then(run)
    return served


def _by_project(served: list[Run]) -> Counter[str]:
    return Counter(run.task.project.slug for run in served)


@pytest.fixture
def one_slot(settings: Any) -> None:
    settings.LOOPWARDEN_SLOTS = 1


def test_slots_go_to_projects_by_their_weight(settings: Any) -> None:
    settings.LOOPWARDEN_SLOTS = 8
    scenes.project("light")
    scenes.project("heavy", weight=3)
    for slug in ("light", "heavy"):
        many(slug, 20)
    dispatch.admit_waiting()
    held = Run.objects.filter(admitted_at__isnull=False).select_related("task__project")
    assert _by_project(list(held)) == {"light": 2, "heavy": 6}


@pytest.mark.usefixtures("one_slot")
def test_turns_go_to_projects_by_their_weight_where_only_one_can_go() -> None:
    scenes.project("light")
    scenes.project("heavy", weight=3)
    for slug in ("light", "heavy"):
        many(slug, 30)
    _serve(8)  # what both get as newcomers is the same for both
    assert _by_project(_serve(24)) == {"light": 6, "heavy": 18}


@pytest.mark.usefixtures("one_slot")
def test_who_was_away_for_long_is_not_first_for_as_long() -> None:
    many("busy", 40)
    many("away", 2)
    _serve(14)
    many("away", 20)
    counts = _by_project(_serve(10))
    assert counts == {"busy": 5, "away": 5}


def test_a_long_queue_delays_a_small_project_by_no_more_than_its_share(settings: Any) -> None:
    """Counted in admissions: of each two one is the small project's, until it has none left."""
    settings.LOOPWARDEN_SLOTS = 4
    many("large", 400)
    dispatch.admit_waiting()
    many("small", 10)
    served = _serve(28)
    small = [at for at, run in enumerate(served) if run.task.project.slug == "small"]
    assert len(small) == 10
    assert max(small) < 4 + 2 * 10


@pytest.mark.usefixtures("one_slot")
def test_a_run_of_low_priority_goes_in_spite_of_a_flow_of_high_ones() -> None:
    low = rows.queued(priority=-5)
    many("default", 30, priority=9)
    served = _serve(EXTRA_TURN, lambda _: rows.queued(priority=9))
    assert low in served
    assert served[0].priority == 9


def test_the_flow_of_one_project_does_not_keep_an_agent_from_another() -> None:
    """The other one holds more slots elsewhere, so it would never be its turn."""
    scenes.agent("shared", "coder", max_running=1)
    for _ in range(3):
        rows.change(rows.queued("wide"), admitted_at=Now(), next_at=Now() + rows.AGO)
    wanting = rows.queued("wide", agents={"coder": "shared"})
    many("narrow", 3, agents={"coder": "shared"})
    served = []
    for _ in range(2 * EXTRA_TURN):
        dispatch.admit_waiting()
        run = Run.objects.get(admitted_at__isnull=False, lane__agents="shared")
        finish(run)
        served.append(run)
        rows.queued("narrow", agents={"coder": "shared"})
    assert wanting in served


def test_who_needs_two_contended_agents_gets_both_in_the_end() -> None:
    """One of them is always in use, unless what comes free is kept for it."""
    for name in ("left", "right"):
        scenes.agent(name, "coder", max_running=1)
    both = rows.queued("both", agents={"coder": "left", "reviewer": "right"})
    ends: list[Run] = []
    for name in ("left", "right"):
        many(name, 2, agents={"coder": name})
        Lane.objects.filter(agents=name).update(admissions=1, served=1)
    rows.change(both, next_at=Now() + rows.AGO)
    dispatch.admit_waiting()
    rows.change(both, next_at=Now() - rows.AGO)
    for turn in range(4 * EXTRA_TURN):
        name = ("left", "right")[turn % 2]
        holder = Run.objects.filter(admitted_at__isnull=False, lane__agents=name).first()
        if holder is not None:
            finish(holder)
            rows.queued(name, agents={"coder": name})
        dispatch.admit_waiting()
        both.refresh_from_db()
        if both.admitted_at is not None:
            break
        ends.append(both)
    assert both.admitted_at is not None


def test_a_full_agent_hides_no_other_run() -> None:
    scenes.agent("full", "coder", max_running=1)
    many("default", 60, agents={"coder": "full"}, priority=9)
    free = rows.queued()
    assert dispatch.admit_waiting() == 2
    free.refresh_from_db()
    assert free.admitted_at is not None


def test_a_pass_asks_as_much_for_ten_thousand_as_for_ten(settings: Any) -> None:
    settings.LOOPWARDEN_SLOTS = 2
    scenes.agent("full", "coder", max_running=1)
    rows.admitted(agents={"coder": "full"})
    many("small", 10, agents={"coder": "full"})
    assert dispatch.admit_waiting() == 0
    with CaptureQueriesContext(connection) as short:
        assert dispatch.admit_waiting() == 0
    many("large", 10_000, agents={"coder": "full"})
    assert dispatch.admit_waiting() == 0
    with CaptureQueriesContext(connection) as long:
        assert dispatch.admit_waiting() == 0
    assert len(long) == len(short) <= 5
    many("large", 50)
    with CaptureQueriesContext(connection) as one:
        assert dispatch.admit_waiting() == 1
    assert len(one) <= 5 + 10
    _are_indexed()


def _are_indexed() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    plan = Turns(dispatch.waiting())._lanes().explain()
    assert "run_first" in plan
    assert "run_oldest" in plan
    assert "run_holding" in admission.holding().explain()


def test_a_run_of_an_older_version_is_put_into_its_lane() -> None:
    run = rows.queued(agents={"coder": "b", "reviewer": "a"}, priority=3)
    rows.change(run, lane=None, priority=0)
    assert dispatch.admit_waiting() == 0
    sweeper.run_pass()
    run.refresh_from_db()
    assert run.lane is not None
    assert (run.lane.agents, run.priority) == ("a,b", 3)
    assert dispatch.admit_waiting() == 1


def test_a_weight_below_one_is_refused_by_the_database() -> None:
    with pytest.raises(IntegrityError):
        Project.objects.create(slug="none", name="none", weight=0)
