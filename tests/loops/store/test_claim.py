"""Who may run the next attempt."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from loops.core.lifecycle import StopReason
from loops.models import Attempt, AttemptStatus, Run
from loops.store import attempts, runs
from tests.engine import rows

pytestmark = pytest.mark.django_db(transaction=True)

SOON = timedelta(minutes=5)


def test_rc148_one_of_many_workers_wins_the_attempt() -> None:
    run = rows.admitted()
    claims = rows.together(8, lambda n: attempts.claim(run.pk, 1, worker=f"worker-{n}"))
    won = [claim for claim in claims if claim is not None]
    assert len(won) == 1
    assert isinstance(won[0], attempts.Claim)
    run.refresh_from_db()
    assert (run.status, run.lease_token, run.lease_owner) == ("running", 1, won[0].worker)
    assert Attempt.objects.get(run=run).claims == 1


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"attempt_no": 2}, id="stale number"),
        pytest.param({"admitted_at": None}, id="not admitted"),
        pytest.param({"cancel_requested": True}, id="rc152 cancelled while its message waited"),
        pytest.param({"next_at": Now() + SOON}, id="not due yet"),
        pytest.param({"deadline_at": Now() - SOON}, id="rc192 past its deadline"),
        pytest.param({"status": "at_gate"}, id="at the gate"),
        pytest.param(
            {"status": "cancelled", "stop_reason": StopReason.CANCELLED_BY_PERSON}, id="ended"
        ),
    ],
)
def test_it_is_not_claimed(facts: dict[str, Any]) -> None:
    run = rows.admitted(**facts)
    before = Run.objects.filter(pk=run.pk).values().get()
    assert attempts.claim(run.pk, 1, worker="late") is None
    assert Run.objects.filter(pk=run.pk).values().get() == before
    assert not Attempt.objects.filter(run=run).exists()


def test_it_is_not_claimed_while_it_runs() -> None:
    run, first = rows.claimed()
    assert attempts.claim(run.pk, 1, worker="worker-2") is None
    assert attempts.renew(first)


def test_a_deadline_that_is_still_ahead_does_not_matter() -> None:
    run = rows.admitted(deadline_at=Now() + SOON)
    assert attempts.claim(run.pk, 1, worker="worker-1") is not None


def test_a_lost_attempt_is_claimed_again_under_its_number_with_a_new_token() -> None:
    run, first = rows.claimed()
    second = rows.take(rows.lost_and_taken_back(run), worker="worker-2")
    assert (second.no, second.token, second.claims) == (first.no, first.token + 1, 2)
    attempt = Attempt.objects.get(run=run)
    assert (attempt.claims, attempt.worker, attempt.token) == (2, "worker-2", second.token)
    assert not attempts.renew(first)


def test_only_an_attempt_whose_lease_ran_out_is_taken_back() -> None:
    run, _ = rows.claimed()
    assert not attempts.take_back(run)
    rows.lose_lease(run)
    stale = Run.objects.get(pk=run.pk)
    rows.take(rows.lost_and_taken_back(run))
    assert not attempts.take_back(stale)
    assert run.status == "running"


def test_a_delivery_with_nothing_to_do_is_noted() -> None:
    run, _ = rows.claimed()
    attempts.ignore_delivery(run.pk, 1, worker="late")
    event = run.events.latest("seq")
    assert (event.kind, event.actor, event.data) == ("delivery_ignored", "late", {"no": 1})
    attempts.ignore_delivery(10**9, 1, worker="late")


def test_an_attempt_handed_back_keeps_its_number_and_is_no_crash() -> None:
    run, claim = rows.claimed()
    assert attempts.hand_back(claim, why="its worker shuts down")
    run.refresh_from_db()
    assert (run.status, run.attempt_no, run.admitted_at) == ("queued", 1, None)
    rows.change(run, admitted_at=Now())
    assert rows.take(run).claims == 1


def test_an_attempt_of_somebody_else_is_not_handed_back() -> None:
    run, first = rows.claimed()
    rows.take(rows.lost_and_taken_back(run), worker="worker-2")
    assert not attempts.hand_back(first, why="too late")
    run.refresh_from_db()
    assert (run.status, Attempt.objects.get(run=run).claims) == ("running", 2)


def test_an_attempt_that_a_person_starts_again_begins_anew() -> None:
    """After a gate for lost workers the earlier crashes are not held against the next worker."""
    run, _ = rows.claimed()
    rows.take(rows.lost_and_taken_back(run))
    with_gate = {"stop_reason": StopReason.WORKER_LOST, "reason": "died", "actor": "system"}
    runs.move(run, runs.RunStatus.AT_GATE, kind="parked", **with_gate)
    assert Attempt.objects.get(run=run).status == AttemptStatus.ABANDONED
    rows.change(run, status="queued", admitted_at=Now())
    assert rows.take(run).claims == 1
    attempt = Attempt.objects.get(run=run)
    assert (attempt.status, attempt.ended_at, attempt.error) == ("running", None, "")


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"cancel_requested": True}, id="cancelled"),
        pytest.param({"lease_expires_at": Now() - rows.AGO}, id="lease ran out"),
        pytest.param({"attempt_deadline_at": Now() - rows.AGO}, id="attempt out of time"),
        pytest.param({"deadline_at": Now() - rows.AGO}, id="run out of time"),
        pytest.param({"lease_token": 7}, id="taken over"),
    ],
)
def test_a_lease_is_not_renewed(facts: dict[str, Any]) -> None:
    run, claim = rows.claimed()
    assert attempts.renew(claim)
    lease = rows.change(run, **facts).lease_expires_at
    assert not attempts.renew(claim)
    run.refresh_from_db()
    assert run.lease_expires_at == lease
