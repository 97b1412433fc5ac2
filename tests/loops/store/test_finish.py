"""How an attempt ends, and what can never be written."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from loops.core.errors import IllegalMove
from loops.core.lifecycle import TERMINAL, RunStatus, StopReason
from loops.core.limits import Amount
from loops.models import Attempt, AttemptStatus, Escalation, Run, Step
from loops.store import attempts, ledger, runs
from tests.engine import rows

pytestmark = pytest.mark.django_db(transaction=True)

CALL = Amount(model_calls=1, tokens=100, cost_microusd=1_000)


def _row(run: Run) -> dict[str, Any]:
    return Run.objects.filter(pk=run.pk).values().get()


def test_it_moves_the_run_on_and_closes_the_attempt() -> None:
    run, claim = rows.claimed()
    assert attempts.finish(claim, rows.ending(state={"round": 1}, feedback="more", active_ms=7))
    run.refresh_from_db()
    assert (run.status, run.attempt_no, run.iterations, run.active_ms) == ("queued", 2, 1, 7)
    assert (run.state, run.feedback, run.lease_expires_at) == ({"round": 1}, "more", None)
    assert (run.admitted_at, run.ended_at) == (None, None)
    attempt = Attempt.objects.get(run=run)
    assert (attempt.status, attempt.counted) == ("judged", True)
    assert attempt.ended_at is not None


def test_a_run_that_ends_says_when_and_why() -> None:
    run, claim = rows.claimed()
    assert attempts.finish(claim, rows.ending(RunStatus.SUCCEEDED, stop_reason=StopReason.ACCEPTED))
    run.refresh_from_db()
    assert run.ended_at is not None
    assert run.sentence == "Accepted by its evaluator."
    assert run.events.latest("seq").kind == "finished"


def test_a_worker_with_an_old_token_writes_nothing_but_its_bill() -> None:
    run, zombie = rows.claimed()
    reservation = rows.sent(zombie, CALL)
    live = rows.take(rows.lost_and_taken_back(run), worker="worker-2")
    before, attempt = _row(run), Attempt.objects.values().get(run=run)
    assert not attempts.finish(zombie, rows.ending())
    assert _row(run) == before
    assert Attempt.objects.values().get(run=run) == attempt
    assert not ledger.settle(zombie, 1, reservation, rows.answer(tokens=60, cost_microusd=600))
    run.refresh_from_db()
    assert (run.used.tokens, run.used.model_calls, run.reserved.tokens) == (60, 1, 0)
    assert Step.objects.get(run=run).status == "running"
    assert attempts.finish(live, rows.ending())


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"lease_expires_at": Now() - rows.AGO}, id="past its lease"),
        pytest.param({"cancel_requested": True}, id="cancelled meanwhile"),
        pytest.param({"deadline_at": Now() - rows.AGO}, id="past its deadline"),
        pytest.param({"attempt_no": 2}, id="another attempt"),
        pytest.param({"lease_token": 2}, id="another claim"),
    ],
)
def test_it_is_not_finished(facts: dict[str, Any]) -> None:
    run, claim = rows.claimed()
    rows.change(run, **facts)
    before = _row(run)
    assert not attempts.finish(claim, rows.ending())
    assert _row(run) == before
    assert Attempt.objects.get(run=run).status == AttemptStatus.RUNNING


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_i1_nothing_follows_an_end(status: RunStatus) -> None:
    run, claim = rows.claimed()
    end = {"status": status, "stop_reason": "accepted", "lease_expires_at": None}
    before = _row(rows.change(run, **end, admitted_at=Now()))
    assert not attempts.finish(claim, rows.ending())
    assert attempts.claim(run.pk, 1, worker="late") is None
    assert not attempts.renew(claim)
    assert not attempts.hand_back(claim, why="late")
    assert attempts.admit(run.pk, 1) is None
    assert not runs.cancel(run, actor="user")
    for target in RunStatus:
        with pytest.raises(IllegalMove):
            runs.move(run, target, stop_reason=None, reason="", actor="user", kind="moved")
    assert _row(run) == before


def test_a_move_from_an_older_look_is_refused() -> None:
    run = rows.queued()
    stale = Run.objects.get(pk=run.pk)
    rows.change(run, version=run.version + 1)
    with pytest.raises(runs.MovedOn), transaction.atomic():
        runs.end_cancelled(stale, actor="user")


def test_a_run_that_is_cancelled_between_two_workers_leaves_no_live_attempt() -> None:
    run, _ = rows.claimed()
    assert attempts.take_back(rows.lose_lease(run))
    assert runs.cancel(run, actor="user")
    attempt = Attempt.objects.get(run=run)
    assert (attempt.status, attempt.ended_at is None) == (AttemptStatus.ABANDONED, False)


def test_events_are_numbered_without_a_gap_by_many_writers_at_once() -> None:
    run, claim = rows.claimed()

    def write(number: int) -> None:
        for _ in range(5):
            attempts.ignore_delivery(run.pk, 1, worker=f"worker-{number}")
        if number == 0:
            assert attempts.finish(claim, rows.ending())

    assert rows.together(6, write) == [None] * 6
    seqs = list(run.events.order_by("id").values_list("seq", flat=True))
    assert seqs == list(range(1, 2 + 30 + 1 + 1))
    run.refresh_from_db()
    assert run.event_seq == seqs[-1]


IMPOSSIBLE = [
    pytest.param({"status": "running", "lease_expires_at": None}, id="running without a lease"),
    pytest.param({"lease_expires_at": Now()}, id="a lease without running"),
    pytest.param({"status": "succeeded", "stop_reason": ""}, id="an end without a reason"),
    pytest.param({"status": "sleeping"}, id="an unknown status"),
    pytest.param({"iterations": 4}, id="iterations above the cap"),
    *[
        pytest.param({f"limit_{axis}": 9, f"used_{axis}": 5, f"reserved_{axis}": 5}, id=axis)
        for axis in ("model_calls", "tool_calls", "tokens", "cost_microusd")
    ],
]


@pytest.mark.parametrize("facts", IMPOSSIBLE)
def test_the_database_refuses_an_impossible_run(facts: dict[str, Any]) -> None:
    run = rows.queued()
    with pytest.raises(IntegrityError):
        rows.change(run, **facts)


def test_the_database_refuses_two_live_attempts() -> None:
    run, claim = rows.claimed()
    facts = {"status": "running", "token": 9, "worker": "w", "started_at": run.created_at}
    with pytest.raises(IntegrityError):
        Attempt.objects.create(run=run, no=2, **facts)
    with pytest.raises(IntegrityError):
        Attempt.objects.create(run=run, no=claim.no, **{**facts, "status": "judged"})


def test_the_database_refuses_two_open_items_for_one_cause() -> None:
    run = rows.queued()
    facts = {"run": run, "attempt_no": 1, "reason": "r", "packet": {}, "digest": "d", "allowed": []}
    Escalation.objects.create(cause="iterations", status="decided", **facts)
    Escalation.objects.create(cause="iterations", **facts)
    Escalation.objects.create(cause="refusal", **facts)
    with pytest.raises(IntegrityError):
        Escalation.objects.create(cause="iterations", **facts)
