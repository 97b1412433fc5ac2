"""Who is admitted next, and wake-ups that are lost, doubled or late."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from kombu.exceptions import OperationalError

from loops import feed
from loops.models import Outbox, Project, Run
from tests.engine import rows
from workers import dispatch, sweeper
from workers.app import app

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE = "loopwarden:loop.default"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What was given to the broker."""
    sent: list[list[int]] = []
    monkeypatch.setattr(app, "send_task", lambda _name, args, **_: sent.append(args))
    return sent


@pytest.fixture
def much_later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, whatever was written so far counts as long ago."""

    def pass_time() -> None:
        monkeypatch.setattr(dispatch, "_TRY_AGAIN", timedelta(seconds=-1))
        for name in ("_UNCLAIMED", "_GONE"):
            monkeypatch.setattr(sweeper, name, timedelta(seconds=-1))

    return pass_time


def _admitted() -> list[Run]:
    return list(Run.objects.filter(admitted_at__isnull=False).order_by("wakeups__id"))


def test_a_project_with_few_tasks_does_not_wait_behind_one_with_many(settings: Any) -> None:
    settings.LOOPWARDEN_SLOTS = 4
    for _ in range(30):
        rows.queued("many")
    few = [rows.queued("few") for _ in range(2)]
    assert dispatch.admit_waiting() == 4
    admitted = _admitted()
    assert few[0] in admitted[:2]
    assert few[1] in admitted


def test_a_project_that_holds_slots_already_comes_after_one_that_holds_none(settings: Any) -> None:
    settings.LOOPWARDEN_SLOTS = 3
    rows.queued("early")
    rows.queued("early")
    dispatch.admit_waiting()
    rows.queued("early")
    late = rows.queued("late")
    dispatch.admit_waiting()
    assert _admitted()[-1] == late


def test_inside_a_project_the_higher_priority_goes_first_and_then_the_older(settings: Any) -> None:
    settings.LOOPWARDEN_SLOTS = 3
    low, first, second = (rows.queued(priority=n) for n in (0, 5, 5))
    top = rows.queued(priority=9)
    dispatch.admit_waiting()
    assert _admitted() == [top, first, second]
    assert low not in _admitted()


def test_a_full_project_does_not_hold_up_the_others() -> None:
    rows.queued("full")
    rows.queued("full")
    Project.objects.filter(slug="full").update(max_running=1)
    rows.queued("free")
    assert dispatch.admit_waiting() == 2


@pytest.mark.parametrize(
    "facts",
    [
        {"cancel_requested": True},
        {"next_at": Now() + rows.AGO},
        {"deadline_at": Now() - rows.AGO},
        {"status": "at_gate"},
    ],
    ids=["cancelled", "not due", "past its deadline", "at the gate"],
)
def test_it_is_not_admitted(facts: dict[str, Any]) -> None:
    rows.queued(**facts)
    assert dispatch.admit_waiting() == 0


def test_a_wakeup_is_published_once_by_many_dispatchers(published: list[list[int]]) -> None:
    for _ in range(6):
        rows.queued()
    counts = rows.together(4, lambda _: dispatch.run_pass())
    dispatch.run_pass()
    assert sorted(published) == sorted([run.pk, 1] for run in Run.objects.all())
    assert len(counts) == 4
    assert not Outbox.objects.filter(sent_at__isnull=True).exists()


def test_c1_a_wakeup_whose_dispatcher_died_is_published_by_another(
    published: list[list[int]], much_later: Callable[[], None]
) -> None:
    run = rows.queued()
    dispatch.admit_waiting()
    Outbox.objects.update(tried_at=Now())
    assert dispatch.run_pass() == 0
    much_later()
    assert dispatch.run_pass() == 1
    assert published == [[run.pk, 1]]


def test_c1_a_wakeup_that_the_broker_refused_is_published_later(
    published: list[list[int]],
    much_later: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows.queued()

    def away(*_: Any, **__: Any) -> None:
        raise OperationalError

    with monkeypatch.context() as patch:
        patch.setattr(app, "send_task", away)
        assert dispatch.run_pass() == 0
    much_later()
    assert dispatch.run_pass() == 1
    assert len(published) == 1


def test_c3_a_wakeup_that_the_broker_lost_is_written_again(
    published: list[list[int]], much_later: Callable[[], None]
) -> None:
    run = rows.queued()
    dispatch.run_pass()
    assert sweeper.run_pass() == 0
    much_later()
    assert sweeper.run_pass() == 1
    dispatch.run_pass()
    assert published == [[run.pk, 1]] * 2
    rows.take(run)


def test_a_wakeup_that_is_still_to_be_published_is_not_lost(
    published: list[list[int]], much_later: Callable[[], None]
) -> None:
    rows.queued()
    dispatch.admit_waiting()
    much_later()
    assert sweeper.run_pass() == 0


def test_rc156_a_flushed_broker_gets_the_wakeup_again(much_later: Callable[[], None]) -> None:
    rows.queued()
    assert dispatch.run_pass() == 1
    assert feed.client().llen(QUEUE) == 1
    feed.client().flushall()
    much_later()
    sweeper.run_pass()
    assert dispatch.run_pass() == 1
    assert feed.client().llen(QUEUE) == 1


def test_with_redis_away_nothing_is_admitted_and_nothing_lost(
    published: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = rows.queued()
    with monkeypatch.context() as patch:
        patch.setattr(feed, "client", rows.nowhere)
        assert dispatch.run_pass() == 0
    run.refresh_from_db()
    assert run.admitted_at is None
    assert dispatch.run_pass() == 1
