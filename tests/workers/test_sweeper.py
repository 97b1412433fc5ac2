"""What the sweeper finds: lost workers, deadlines, cancels, open reservations."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from loops import feed, gates
from loops.core.lifecycle import RunStatus, StopReason
from loops.core.limits import Amount
from loops.models import Attempt, Escalation, Outbox, Reservation, Run
from loops.store import attempts, runs
from tests.engine import rows, scenes
from workers import dispatch, sweeper

pytestmark = pytest.mark.django_db(transaction=True)

CALL = Amount(model_calls=1, tokens=100, cost_microusd=1_000)


def _lost(times: int, on_limit: str = "gate") -> Run:
    """A run whose attempt has lost so many workers."""
    run, _ = rows.claimed(on_limit=on_limit)
    for _ in range(times - 1):
        rows.take(rows.lost_and_taken_back(run))
    return rows.lose_lease(run)


def _at_gate(**facts: object) -> Run:
    run, claim = rows.claimed()
    conclusion = rows.ending(RunStatus.AT_GATE, stop_reason=StopReason.ITERATIONS)
    proposal = gates.Proposal(cause=StopReason.ITERATIONS, reason="r", packet={"why": "r"})
    assert gates.park(claim, conclusion, proposal)
    return rows.change(run, **facts)


def test_an_expired_lease_puts_the_attempt_into_the_queue_again() -> None:
    run = _lost(1)
    assert sweeper.run_pass() == 1
    run.refresh_from_db()
    assert (run.status, run.attempt_no, run.admitted_at) == ("queued", 1, None)
    assert run.events.latest("seq").kind == "lease_expired"
    assert sweeper.run_pass() == 0


def test_a_live_lease_is_left_alone() -> None:
    _, claim = rows.claimed()
    assert sweeper.run_pass() == 0
    assert attempts.renew(claim)


def test_what_the_lost_worker_had_sent_is_charged_and_its_slots_are_freed() -> None:
    run = rows.queued()
    scenes.Project.objects.update(max_running=1)
    dispatch.admit_waiting()
    rows.sent(rows.take(run), CALL)
    rows.lose_lease(run)
    sweeper.run_pass()
    run.refresh_from_db()
    assert (run.used, run.reserved) == (CALL, Amount())
    assert dispatch.admit_waiting() == 1


def test_an_attempt_that_loses_three_workers_goes_to_the_gate() -> None:
    run = _lost(3)
    assert sweeper.run_pass() == 1
    run.refresh_from_db()
    assert (run.status, run.stop_reason) == ("at_gate", "worker_lost")
    item = Escalation.objects.get(run=run)
    assert item.allowed == ["continue", "close"]
    assert run.reason == "Its worker died 3 times during attempt 1."
    assert Attempt.objects.get(run=run).status == "abandoned"


def test_it_has_failed_where_nobody_is_to_be_asked() -> None:
    run = _lost(3, on_limit="stop")
    assert sweeper.run_pass() == 1
    run.refresh_from_db()
    assert (run.status, run.stop_reason, run.ended_at is None) == ("failed", "worker_lost", False)
    assert not Escalation.objects.exists()


def test_i8_a_deadline_ends_a_run_wherever_it_stands() -> None:
    past = {"deadline_at": Now() - rows.AGO}
    found = [rows.queued(), rows.admitted(), rows.claimed()[0], _at_gate()]
    for run in found:
        rows.change(run, **past)
    assert sweeper.run_pass() == 4
    for run in found:
        run.refresh_from_db()
        assert (run.status, run.stop_reason) == ("budget_exhausted", "deadline")
        assert run.events.latest("seq").kind == "deadline"
    assert set(Attempt.objects.values_list("status", flat=True)) == {"abandoned", "judged"}
    assert Escalation.objects.get().status == "expired"
    assert sweeper.run_pass() == 0


def test_rc192_a_deadline_that_passed_in_the_queue_says_so() -> None:
    now = timezone.now()
    run = rows.admitted(
        created_at=now - timedelta(minutes=40, seconds=1), deadline_at=now - timedelta(minutes=10)
    )
    assert attempts.claim(run.pk, 1, worker="late") is None
    sweeper.run_pass()
    run.refresh_from_db()
    assert "waited in queue 40 min" in run.sentence
    assert "waiting counts" in run.sentence
    assert run.used.model_calls == 0


def test_a_cancel_is_final_when_its_worker_is_gone() -> None:
    run, _ = rows.claimed()
    assert runs.cancel(run, actor="user")
    assert sweeper.run_pass() == 0
    rows.lose_lease(run)
    assert sweeper.run_pass() == 1
    run.refresh_from_db()
    assert (run.status, run.stop_reason) == ("cancelled", "cancelled_by_person")
    assert Attempt.objects.get(run=run).status == "abandoned"


def test_a_cancel_of_an_attempt_that_was_handed_back_is_made_final() -> None:
    run, claim = rows.claimed()
    runs.cancel(run, actor="user")
    attempts.hand_back(claim, why="its worker shuts down")
    assert dispatch.admit_waiting() == 0
    assert sweeper.run_pass() == 1
    run.refresh_from_db()
    assert run.status == "cancelled"


def test_a_cancel_at_the_gate_takes_the_item_out_of_the_queue() -> None:
    run = _at_gate()
    assert gates.cancel(run, actor="user")
    run.refresh_from_db()
    assert run.status == "cancelled"
    assert Escalation.objects.get().status == "withdrawn"
    assert not gates.cancel(run, actor="user")


def test_old_reservations_of_a_run_that_has_moved_on_are_closed() -> None:
    run, claim = rows.claimed()
    rows.sent(claim, CALL, 1)
    rows.sent(claim, CALL, 2)
    attempts.finish(claim, rows.ending(RunStatus.SUCCEEDED, stop_reason=StopReason.ACCEPTED))
    Reservation.objects.filter(seq=1).update(created_at=Now() - timedelta(hours=1))
    sweeper.run_pass()
    assert rows.states(run) == ["unknown", "unknown"]
    run.refresh_from_db()
    assert (run.used.tokens, run.reserved.tokens) == (200, 0)


def test_reservations_of_a_live_worker_are_left_alone() -> None:
    run, claim = rows.claimed()
    rows.sent(claim, CALL)
    Reservation.objects.update(created_at=Now() - timedelta(hours=1))
    sweeper.run_pass()
    assert rows.states(run) == ["in_flight"]


def test_what_a_new_worker_reserves_during_the_sweep_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, claim = rows.claimed()
    rows.sent(claim, CALL)
    attempts.hand_back(claim, why="its worker shuts down")
    Reservation.objects.update(created_at=Now() - timedelta(hours=1))
    close_lost = sweeper.ledger.close_lost

    def claimed(run_id: int, token: int) -> int:
        rows.change(run, admitted_at=Now())
        rows.sent(rows.take(run), CALL)
        return close_lost(run_id, token)

    monkeypatch.setattr(sweeper.ledger, "close_lost", claimed)
    sweeper.run_pass()
    assert rows.states(run) == ["unknown", "in_flight"]


@pytest.mark.parametrize(
    ("seconds", "on_the_broker", "taken_back"),
    [(2, 0, False), (4, 0, True), (4, 1, False), (29, 1, False), (31, 1, True)],
)
def test_a_wake_up_that_is_not_on_the_broker_any_more_is_soon_taken_for_lost(
    seconds: int, on_the_broker: int, taken_back: bool
) -> None:
    run = rows.queued()
    assert dispatch.run_pass() == 1
    if not on_the_broker:
        feed.client().flushall()
    then = timezone.now() - timedelta(seconds=seconds)
    rows.change(run, admitted_at=then)
    Outbox.objects.update(sent_at=then)

    assert sweeper.run_pass() == taken_back

    run.refresh_from_db()
    assert (run.admitted_at is None) == taken_back


def test_a_wake_up_that_was_published_just_now_is_waited_for() -> None:
    run = rows.queued()
    dispatch.admit_waiting()
    rows.change(run, admitted_at=timezone.now() - timedelta(seconds=60))
    assert dispatch.publish_unsent() == 1
    feed.client().flushall()

    assert sweeper.run_pass() == 0


def test_sweepers_at_the_same_time_move_each_run_once() -> None:
    lost, poison, failing = _lost(1), _lost(3), _lost(3, on_limit="stop")
    late, cancelled = rows.claimed()[0], _lost(1)
    rows.change(late, deadline_at=Now() - rows.AGO)
    rows.change(cancelled, cancel_requested=True)
    moved = rows.together(4, lambda _: sweeper.run_pass())
    assert all(isinstance(count, int) for count in moved), moved
    assert sum(map(int, moved)) == 5  # type: ignore[arg-type]
    kinds = ["lease_expired", "parked", "worker_lost", "deadline", "cancelled"]
    for run, kind in zip([lost, poison, failing, late, cancelled], kinds, strict=True):
        assert run.events.filter(kind=kind).count() == 1
    assert Escalation.objects.count() == 1


@pytest.mark.parametrize("then", ["moved", "claimed"])
def test_a_poisoned_run_that_somebody_else_moved_is_left_alone(
    then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _lost(3)
    close_lost = sweeper.ledger.close_lost

    def faster(run_id: int, token: int) -> int:
        monkeypatch.setattr(sweeper.ledger, "close_lost", close_lost)
        if then == "moved":
            assert sweeper.run_pass() == 1
        else:
            rows.take(rows.lost_and_taken_back(run))
        return close_lost(run_id, token)

    monkeypatch.setattr(sweeper.ledger, "close_lost", faster)
    assert sweeper.run_pass() == 0
    run.refresh_from_db()
    assert run.status == ("at_gate" if then == "moved" else "running")
