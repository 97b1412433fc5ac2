"""Concurrency limits that hold through crashes, late workers and a lost Redis."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db.models.functions import Now

from loops import feed
from loops.models import AgentProfile, Run
from loops.store import attempts
from tests.engine import rows, scenes
from workers import dispatch, slots, sweeper
from workers.slots import Scope

pytestmark = pytest.mark.django_db(transaction=True)

POOL = "loopwarden:slots:pool"


def _scopes(**limits: int) -> list[Scope]:
    return [Scope(name=name, limit=limit) for name, limit in limits.items()]


def _held(scope: str) -> int:
    return int(feed.client().zcard(f"loopwarden:slots:{scope}"))  # type: ignore[arg-type]


def _admitted() -> int:
    return Run.objects.filter(admitted_at__isnull=False).count()


def test_a_run_shares_the_limits_of_pool_project_and_its_agents(settings: Any) -> None:
    settings.LOOPWARDEN_SLOTS = 9
    scenes.agent("fast", "coder", max_running=2)
    project = scenes.project("p", max_running=4)
    run = rows.queued("p", agents={"coder": "fast", "reviewer": "fast", "planner": "gone"})
    found = slots.scopes_of(run, {p.name: p for p in AgentProfile.objects.all()})
    wanted = {"pool": 9, f"project:{project.pk}": 4, "profile:fast": 2}
    assert {scope.name: scope.limit for scope in found} == wanted


@pytest.mark.parametrize("tight", ["pool", "project", "profile"])
def test_each_limit_holds(tight: str, settings: Any) -> None:
    settings.LOOPWARDEN_SLOTS = 2 if tight == "pool" else 9
    scenes.project("p", max_running=2 if tight == "project" else 9)
    scenes.agent("fast", "coder", max_running=2 if tight == "profile" else 9)
    for _ in range(4):
        rows.queued("p", agents={"coder": "fast"})
    assert dispatch.admit_waiting() == 2
    assert dispatch.admit_waiting() == 0
    assert _admitted() == 2


def test_all_slots_are_taken_or_none() -> None:
    first, second = rows.queued(), rows.queued()
    assert slots.acquire(first, _scopes(narrow=1)) is None
    full = slots.acquire(second, _scopes(wide=5, narrow=1))
    assert full == Scope(name="narrow", limit=1)
    assert (_held("wide"), _held("narrow")) == (0, 1)


def test_threads_never_take_more_than_there_are() -> None:
    runs = [rows.queued() for _ in range(12)]
    scopes = _scopes(pool=5)
    slots.rebuild()
    granted = rows.together(12, lambda n: slots.acquire(runs[n], scopes))
    assert granted.count(None) == 5


def test_a_holder_that_is_gone_frees_its_slot_by_itself() -> None:
    first, second = rows.queued(), rows.queued()
    scopes = _scopes(pool=1)
    assert slots.acquire(first, scopes) is None
    assert slots.acquire(second, scopes) is not None
    feed.client().zadd(POOL, {slots.admission(first.pk, 0): 1})
    assert slots.acquire(second, scopes) is None


def test_a_released_slot_is_free_and_is_not_renewed() -> None:
    first, second = rows.queued(), rows.queued()
    scopes = _scopes(pool=1)
    slots.acquire(first, scopes)
    slots.release(slots.admission(first.pk, 0), scopes)
    slots.renew(slots.admission(first.pk, 0), scopes)
    assert slots.acquire(second, scopes) is None


def test_old_and_new_holders_together_stay_within_the_limit_after_a_loss(settings: Any) -> None:
    settings.LOOPWARDEN_SLOTS = 3
    waiting = [rows.queued() for _ in range(5)]
    assert dispatch.admit_waiting() == 3
    rows.take(waiting[0])
    feed.client().flushall()
    assert dispatch.admit_waiting() == 0
    assert slots.acquire(waiting[3], _scopes(pool=3)) is not None
    assert _held("pool") == 3
    assert _admitted() == 3


def test_sets_that_were_lost_again_during_their_rebuild_admit_nobody(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LOOPWARDEN_SLOTS = 2
    rows.admitted()
    rows.admitted()
    newcomer = rows.queued()
    scopes_of = slots.scopes_of

    def lost_again(*args: Any) -> list[Scope]:
        feed.client().flushall()
        return scopes_of(*args)

    monkeypatch.setattr(slots, "scopes_of", lost_again)
    assert slots.acquire(newcomer, _scopes(pool=2)) is not None
    monkeypatch.undo()
    settings.LOOPWARDEN_SLOTS = 2
    assert slots.acquire(newcomer, _scopes(pool=2)) is not None
    assert _held("pool") == 2


def test_the_loser_of_two_dispatchers_leaves_the_winner_its_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = rows.queued()
    admit = attempts.admit

    def beaten(run_id: int, no: int, **place: Any) -> Any:
        monkeypatch.setattr(attempts, "admit", admit)
        dispatch.admit_waiting()
        return admit(run_id, no, **place)

    monkeypatch.setattr(attempts, "admit", beaten)
    assert dispatch.admit_waiting() == 0
    run.refresh_from_db()
    assert run.admitted_at is not None
    assert _held("pool") == 1


def test_a_run_that_was_cancelled_while_it_was_admitted_gives_its_slots_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = rows.queued()

    def cancelled(_run_id: int, _no: int, **_place: Any) -> None:
        rows.change(run, status="cancelled", stop_reason="cancelled_by_person")

    monkeypatch.setattr(attempts, "admit", cancelled)
    assert dispatch.admit_waiting() == 0
    assert _held("pool") == 0


def test_a_worker_that_ends_late_leaves_the_next_attempt_its_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next attempt is admitted between a worker's commit and its release."""
    task = scenes.pair_task([scenes.code("one")], [scenes.changes("more")])
    release = slots.release

    def late(member: str, scopes: list[Scope]) -> None:
        Run.objects.update(next_at=Now() - rows.AGO)
        assert dispatch.admit_waiting() == 1
        release(member, scopes)

    monkeypatch.setattr(slots, "release", late)
    run = scenes.step(task.runs.get())
    assert (run.attempt_no, run.admitted_at is None) == (2, False)
    assert feed.client().zrange(POOL, 0, -1) == [slots.admission(run.pk, 1).encode()]


@pytest.mark.parametrize(
    ("coder", "status"),
    [({"error": "try later"}, "queued"), ({"stop": "refusal"}, "at_gate")],
    ids=["for a timer", "for a person"],
)
def test_a_run_that_waits_holds_no_slot(coder: dict[str, str], status: str) -> None:
    run = scenes.step(scenes.pair_task([coder], []).runs.get())
    assert run.status == status
    assert (_held("pool"), _held("profile:pair-coder")) == (0, 0)


def test_who_begins_takes_the_place_of_its_own_admission(settings: Any) -> None:
    settings.LOOPWARDEN_SLOTS = 1
    run = rows.queued()
    assert dispatch.admit_waiting() == 1
    claim = rows.take(run)
    assert slots.begin(claim, _scopes(pool=1)) is None
    assert feed.client().zrange(POOL, 0, -1) == [slots.holder(run.pk, claim.token).encode()]


def test_of_two_that_are_admitted_for_one_slot_one_begins() -> None:
    """Two runs are admitted for one slot, as a loss between slots and commit may leave them."""
    first, second = (rows.claimed()[1] for _ in range(2))
    feed.client().flushall()
    answers = [slots.begin(claim, _scopes(pool=1)) for claim in (first, second)]
    assert answers == [Scope(name="pool", limit=1), None]
    assert slots.begin(first, _scopes(pool=1)) is not None
    assert feed.client().zrange(POOL, 0, -1) == [slots.holder(second.run_id, 1).encode()]


def test_a_run_that_a_deadline_ended_holds_its_slots_until_its_worker_must_know() -> None:
    run, _ = rows.claimed()
    rows.change(run, deadline_at=Now() - rows.AGO)
    sweeper.run_pass()
    feed.client().flushall()
    newcomer = rows.queued()
    assert slots.acquire(newcomer, _scopes(pool=1)) is not None
    run.attempts.update(ended_at=Now() - timedelta(seconds=settings.LOOPWARDEN_LEASE_SECONDS + 1))
    feed.client().flushall()
    assert slots.acquire(newcomer, _scopes(pool=1)) is None


def test_sets_that_a_server_kept_through_a_long_absence_are_not_trusted() -> None:
    """Its slots have run out meanwhile, and their holders still work."""
    run, claim = rows.claimed()
    assert slots.begin(claim, _scopes(pool=1)) is None
    lasts = feed.client().ttl("loopwarden:slots:epoch")
    assert 0 < lasts <= settings.LOOPWARDEN_LEASE_SECONDS  # type: ignore[operator]
    feed.client().zadd(POOL, {slots.holder(run.pk, claim.token): 1})
    feed.client().delete("loopwarden:slots:epoch")
    assert slots.acquire(rows.queued(), _scopes(pool=1)) is not None
