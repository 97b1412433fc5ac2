"""Pause, resume and the kill switch in the database: once per request, in the right order."""

from __future__ import annotations

import pytest
from django.db.models.functions import Now

from loops import gates
from loops.core.lifecycle import RunStatus, StopReason
from loops.core.limits import Amount
from loops.models import Event, Hold, HoldRequest, Outbox, Run
from loops.store import attempts, holds, ledger
from loops.store.holds import AlreadyEnded, Request, RequestReused, Target
from tests.engine import rows
from tests.engine.scenes import project
from workers import dispatch, sweeper

pytestmark = pytest.mark.django_db(transaction=True)
ONE = Amount(model_calls=1, tokens=10, cost_microusd=5)


def ask(request_id: str = "", why: str = "") -> Request:
    """Somebody's request."""
    own = {"request_id": request_id} if request_id else {}
    return Request(actor="alice", why=why, **own)


def targets(run: Run) -> dict[str, Target]:
    """Everything that can hold the run."""
    return {
        "run": Target(run=run),
        "project": Target(project=run.task.project),
        "all": Target(),
        "switch": Target(switch=True),
    }


@pytest.mark.parametrize("scope", ["run", "project", "all", "switch"])
def test_what_is_held_is_neither_admitted_nor_claimed_until_it_goes_on(scope: str) -> None:
    waiting, admitted = rows.queued(next_at=Now() - rows.AGO), rows.admitted()
    other = rows.admitted("other")
    for run in (waiting, admitted):
        holds.hold(targets(run)[scope], ask())
    assert attempts.claim(admitted.pk, 1, worker="w") is None
    assert dispatch.waiting().filter(pk__in=[waiting.pk, admitted.pk]).count() == 0
    wide = scope in ("all", "switch")
    assert (attempts.claim(other.pk, 1, worker="w") is None) == wide
    for run in (waiting, admitted):
        holds.lift(targets(run)[scope], ask())
    assert dispatch.waiting().filter(pk__in=[waiting.pk, admitted.pk]).count() == 2


@pytest.mark.parametrize("scope", ["run", "project", "all"])
def test_a_pause_lets_the_attempt_at_work_finish(scope: str) -> None:
    run, claim = rows.claimed()
    holds.hold(targets(run)[scope], ask())
    assert attempts.renew(claim)
    assert ledger.send(ledger.reserve(claim, rows.call(), ONE))
    assert attempts.finish(claim, rows.ending())
    assert dispatch.waiting().count() == 0
    assert not Outbox.objects.filter(run=run, attempt_no=2).exists()


def test_the_switch_refuses_every_next_step_of_an_attempt_at_work() -> None:
    run, claim = rows.claimed()
    reserved = ledger.reserve(claim, rows.call(), ONE)
    holds.hold(Target(switch=True), ask())
    assert not ledger.send(reserved)
    assert not attempts.renew(claim)
    with pytest.raises(ledger.LeaseLost):
        ledger.reserve(claim, rows.call(2), ONE)
    ledger.release(reserved)
    run.refresh_from_db()
    assert run.reserved == Amount()
    assert attempts.hand_back(claim, why="everything is stopped")
    assert attempts.claim(run.pk, 1, worker="w") is None


def test_a_request_that_comes_again_has_one_effect_and_one_event() -> None:
    run = rows.queued()
    for _ in range(3):
        holds.hold(Target(run=run), ask("p1", "look first"))
    holds.lift(Target(run=run), ask("r1"))
    holds.hold(Target(run=run), ask("p1", "look first"))
    assert not Hold.objects.exists()
    assert [holds.lift(Target(run=run), ask("r1")) for _ in range(2)] == [True, True]
    said = Event.objects.filter(run=run, kind__in=["paused", "resumed"]).order_by("seq")
    assert [(one.kind, one.text, one.actor) for one in said] == [
        ("paused", "paused it: look first", "alice"),
        ("resumed", "resumed it", "alice"),
    ]


def test_ten_equal_requests_at_once_have_one_effect() -> None:
    run = rows.queued()
    found = rows.together(10, lambda _: holds.hold(Target(run=run), ask("p1")))
    assert sorted(found, key=str) == [None] * 9 + [[]]
    assert Event.objects.filter(run=run, kind="paused").count() == 1
    assert HoldRequest.objects.count() == Hold.objects.count() == 1


def test_a_late_resume_does_not_take_back_a_pause_that_came_after_it() -> None:
    target = Target(run=rows.queued())
    holds.hold(target, ask("p1"))
    holds.hold(target, ask("p2"))
    assert not holds.lift(target, ask("r1"), seen="p1")
    assert Hold.objects.get().request_id == "p2"
    assert not holds.lift(target, ask("r1"), seen="p2"), "the same request has the same answer"
    assert holds.lift(target, ask("r2"), seen="p2")
    assert list(HoldRequest.objects.order_by("id").values_list("request_id", "changed")) == [
        ("p1", True),
        ("p2", True),
        ("r1", False),
        ("r2", True),
    ]


def test_an_id_cannot_stand_for_two_requests() -> None:
    holds.hold(Target(), ask("p1"))
    for other in (Target(switch=True), Target(project=project())):
        with pytest.raises(RequestReused, match="stands for hold all already"):
            holds.hold(other, ask("p1"))
    with pytest.raises(RequestReused):
        holds.lift(Target(), ask("p1"))
    assert list(Hold.objects.values_list("target", flat=True)) == ["all"]


def test_a_run_that_has_ended_is_not_paused_and_leaves_no_hold_behind() -> None:
    run, claim = rows.claimed()
    holds.hold(Target(run=run), ask())
    assert attempts.finish(
        claim, rows.ending(RunStatus.SUCCEEDED, stop_reason=StopReason.ACCEPTED, reason="done")
    )
    with pytest.raises(AlreadyEnded):
        holds.hold(Target(run=run), ask("late"))
    assert not HoldRequest.objects.filter(request_id="late").exists()
    sweeper.run_pass()
    assert not Hold.objects.exists()


def test_a_pause_and_a_finish_at_once_leave_no_run_that_goes_on() -> None:
    for _ in range(10):
        run, claim = rows.claimed()
        done = rows.together(
            2,
            lambda at, run=run, claim=claim: (  # type: ignore[misc]
                holds.hold(Target(run=run), ask()) if at else attempts.finish(claim, rows.ending())
            ),
        )
        assert done == [True, []]
        run.refresh_from_db()
        assert (run.status, run.attempt_no, run.admitted_at) == ("queued", 2, None)
    assert dispatch.waiting().count() == 0


def test_at_the_gate_a_pause_holds_what_a_decision_sets_free(django_user_model: type) -> None:
    run, claim = rows.claimed()
    asked = gates.Proposal(cause=StopReason.ITERATIONS, reason="used", packet={"why": "used"})
    assert gates.park(
        claim, rows.ending(RunStatus.AT_GATE, stop_reason=StopReason.ITERATIONS), asked
    )
    holds.hold(Target(run=run), ask())
    item = run.escalations.get()
    user = django_user_model.objects.create_user("bob")  # type: ignore[attr-defined]
    gates.decide(item.pk, decision="continue", digest=item.digest, user=user, guidance="go on")
    run.refresh_from_db()
    assert run.status == "queued"
    assert dispatch.waiting().count() == 0
    holds.lift(Target(run=run), ask())
    assert dispatch.waiting().count() == 1


def test_a_deadline_ends_a_paused_run() -> None:
    run = rows.queued(deadline_at=Now() - rows.AGO)
    holds.hold(Target(run=run), ask())
    sweeper.run_pass()
    run.refresh_from_db()
    assert (run.status, run.stop_reason) == ("budget_exhausted", "deadline")
