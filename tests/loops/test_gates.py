"""What a person decides: once, on what was shown, and carried out as it was said."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now

from loops import gates
from loops.core.canonical import digest as digest_of
from loops.core.lifecycle import SENTENCES, RunStatus, StopReason
from loops.figures import account
from loops.gates import BadDecision, NotPossibleNow
from loops.models import Decision, Escalation, LimitGrant, Run, Step
from loops.store import artifacts, attempts
from tests.engine import rows, scenes

pytestmark = pytest.mark.django_db(transaction=True)

WORDS = "Use the event bus; keep the public API."
PACKET = {"why": "r", "reasons": ["first"]}


def _proposal(**facts: Any) -> gates.Proposal:
    return gates.Proposal(
        **{"cause": StopReason.ITERATIONS, "reason": "r", "packet": PACKET, **facts}
    )


def _parked(**facts: Any) -> Escalation:
    run, claim = rows.claimed()
    gate = rows.ending(RunStatus.AT_GATE, stop_reason=StopReason.ITERATIONS, feedback="old")
    assert gates.park(claim, gate, _proposal())
    rows.change(run, **facts)
    return Escalation.objects.get(run=run)


def _user(name: str = "ada") -> User:
    return User.objects.get_or_create(username=name)[0]


def _decide(item: Escalation, decision: str = "continue", **facts: Any) -> Escalation:
    usual = {"digest": item.digest, "user": _user(), "guidance": WORDS}
    return gates.decide(item.pk, decision=decision, **{**usual, **facts})


def _row(item: Escalation) -> tuple[dict[str, Any], dict[str, Any]]:
    run = Run.objects.filter(pk=item.run_id).values().get()
    return run, Escalation.objects.filter(pk=item.pk).values().get()


def test_the_item_is_opened_with_the_parking_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    run, claim = rows.claimed()
    gate = rows.ending(RunStatus.AT_GATE, stop_reason=StopReason.ITERATIONS)
    with monkeypatch.context() as patch:
        patch.setattr(gates, "_open", None)
        with pytest.raises(TypeError):
            gates.park(claim, gate, _proposal())
    run.refresh_from_db()
    assert (run.status, Escalation.objects.count()) == ("running", 0)
    rows.change(run, lease_token=9)
    assert not gates.park(claim, gate, _proposal())
    assert Escalation.objects.count() == 0


def test_the_digest_is_that_of_what_is_shown() -> None:
    item = _parked()
    assert item.digest == digest_of(item.packet) == digest_of(PACKET)


def test_continue_grants_a_row_and_puts_the_run_into_the_queue() -> None:
    item = _decide(_parked(errors=2), iterations=4)
    run = Run.objects.get(pk=item.run_id)
    assert (item.status, item.decision, item.granted_iterations) == ("decided", "continue", 4)
    assert item.decided_by == _user()
    assert (run.status, run.stop_reason, run.errors, run.ended_at) == ("queued", "", 0, None)
    assert (run.limit_iterations, run.feedback) == (7, f"{WORDS}\n\nold")
    grant = LimitGrant.objects.latest("id")
    assert (grant.iterations, grant.granted_by) == (4, _user())
    assert run.events.latest("seq").text == "ada continued it with guidance and 4 more rounds"


@pytest.mark.parametrize(
    ("decision", "status", "reason"),
    [
        ("accept", "succeeded", "accepted_by_person"),
        ("close", "escalated", "closed_by_person"),
    ],
)
def test_a_decision_ends_the_run(decision: str, status: str, reason: str) -> None:
    item = _decide(_parked(), decision, guidance="")
    run = Run.objects.get(pk=item.run_id)
    assert (run.status, run.stop_reason, item.granted_iterations) == (status, reason, 0)
    assert run.ended_at is not None
    assert "ada" in run.sentence
    assert run.events.latest("seq").actor == "ada"


@pytest.mark.parametrize("cause", [StopReason.ITERATIONS, StopReason.REFUSAL])
def test_rc041_closed_by_a_person_is_never_a_refusal_of_the_model(cause: StopReason) -> None:
    run, claim = rows.claimed()
    gate = rows.ending(RunStatus.AT_GATE, stop_reason=cause)
    assert gates.park(claim, gate, _proposal(cause=cause, reason=SENTENCES[cause]))
    item = _decide(Escalation.objects.get(run=run), "close", guidance="")
    run.refresh_from_db()
    assert (run.status, run.stop_reason) == ("escalated", "closed_by_person")
    assert run.sentence == "Closed by ada, without a result."
    last = run.events.latest("seq")
    assert (last.kind, last.actor, item.decided_by) == ("closed", "ada", _user())
    told = account(run)
    assert told is not None
    assert told.stop_reason != "refusal"


def test_rc142_it_refuses_a_second_decision_and_says_who_was_first() -> None:
    item = _parked()
    _decide(item, "accept")
    before = _row(item)
    with pytest.raises(NotPossibleNow, match="ada was first: accept as it is"):
        _decide(item, "close", user=_user("bob"))
    assert _row(item) == before


def test_it_refuses_a_decision_on_something_else_than_what_was_shown() -> None:
    """S0-X3: a yes holds for what was looked at."""
    item = _parked()
    before = _row(item)
    with pytest.raises(NotPossibleNow, match="changed since"):
        _decide(item, digest="0" * 64)
    assert _row(item) == before


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"decision": "abort"}, "decision"),
        ({"guidance": " \n"}, "guidance"),
        ({"iterations": 0}, "iterations"),
        ({"iterations": 101}, "iterations"),
    ],
)
def test_it_refuses_a_decision_that_cannot_be_taken(facts: dict[str, Any], field: str) -> None:
    """S0-X3: going on takes words and a number, not just a click."""
    item = _parked()
    before = _row(item)
    with pytest.raises(BadDecision) as caught:
        _decide(item, **facts)
    assert caught.value.field == field
    assert _row(item) == before


def test_it_refuses_a_decision_that_this_item_does_not_allow() -> None:
    item = _parked()
    Escalation.objects.update(allowed=[Decision.CLOSE])
    with pytest.raises(BadDecision, match="must be one of: close"):
        _decide(item, "accept")


def test_of_many_people_at_once_one_decides() -> None:
    item = _parked()
    names = [_user(f"user-{n}") for n in range(6)]
    decisions = ["accept", "close", "continue"] * 2
    answers = rows.together(6, lambda n: _decide(item, decisions[n], user=names[n]))
    won = [answer for answer in answers if isinstance(answer, Escalation)]
    assert len(won) == 1
    others = [answer for answer in answers if answer is not won[0]]
    assert all(isinstance(answer, NotPossibleNow) for answer in others), others
    assert all(f"{won[0].decided_by} was first" in str(answer) for answer in others)
    kinds = Run.objects.get(pk=item.run_id).events.values_list("kind", flat=True)
    assert len({"continued", "accepted", "closed"} & set(kinds)) == 1


def test_it_refuses_a_decision_after_the_deadline() -> None:
    item = _parked(deadline_at=Now() - rows.AGO)
    before = _row(item)
    with pytest.raises(NotPossibleNow, match="deadline has passed"):
        _decide(item)
    assert _row(item) == before


def test_it_refuses_a_decision_after_a_cancel() -> None:
    item = _parked()
    gates.cancel(item.run, actor="bob")
    with pytest.raises(NotPossibleNow, match="not open any more"):
        _decide(item, "accept")


def test_rc138_the_guidance_reaches_the_next_prompt_word_for_word() -> None:
    """RC136 with it: nothing but rows connects the parking with what comes after the decision."""
    task = scenes.pair_task(
        [scenes.code("one"), scenes.code("two")],
        [scenes.changes("say two"), scenes.APPROVED],
        iterations=1,
    )
    run = scenes.drive(task.runs.get())
    _decide(Escalation.objects.get(run=run), iterations=1)
    run = scenes.drive(Run.objects.get(pk=run.pk))
    assert run.status == "succeeded"
    prompt = Step.objects.get(run=run, attempt_no=2, role="coder").prompt
    assert WORDS in artifacts.get_text(prompt)
    assert "say two" in artifacts.get_text(prompt)
    assert Escalation.objects.count() == 1
    assert run.used.model_calls == 4


def test_rc079_two_granted_rounds_are_two_rounds_before_the_gate_asks_again() -> None:
    reviews = [scenes.changes(f"reason {n}") for n in range(6)]
    task = scenes.pair_task([scenes.code(str(n)) for n in range(6)], reviews)
    run = scenes.drive(task.runs.get())
    assert (run.status, run.iterations) == ("at_gate", 3)
    _decide(Escalation.objects.get(status="open"), iterations=2)
    run = scenes.drive(run)
    assert (run.status, run.stop_reason, run.iterations) == ("at_gate", "iterations", 5)
    assert run.limit_iterations == 5
    assert Escalation.objects.filter(run=run).count() == 2


def test_rc067_a_run_at_its_cap_holds_the_last_code_reasons_and_spend() -> None:
    task = scenes.pair_task(
        [scenes.code("one"), scenes.code("two")],
        [scenes.changes("r1"), scenes.changes("r2")],
        iterations=2,
    )
    run = scenes.drive(task.runs.get())
    packet = Escalation.objects.get(run=run).packet
    assert (packet["code"], packet["reasons"]) == ("two\n", ["r2"])
    assert (packet["cost_microusd"], packet["iterations"], packet["cap"]) == (12_000, 2, 2)
    assert run.stop_reason == "iterations"
    assert run.sentence


def test_a_decision_during_the_deadlines_sweep_changes_nothing() -> None:
    item = _parked()
    assert gates.withdraw(item.run_id) == 1
    with pytest.raises(NotPossibleNow):
        _decide(item)
    assert attempts.admit(item.run_id, 2) is None


def test_continuing_after_the_cost_limit_grants_as_much_again_as_the_packet_said() -> None:
    answers = [scenes.code("one"), scenes.code("two")]
    reviews = [scenes.changes("more"), scenes.APPROVED]
    task = scenes.pair_task(answers, reviews, cost_microusd=7_000)
    run = scenes.drive(task.runs.get())
    item = Escalation.objects.get(run=run)
    assert (run.stop_reason, item.packet["also_grants"]) == ("cost", {"cost_microusd": 7_000})
    facts = {"digest": item.digest, "user": _user(), "guidance": "Go on."}
    gates.decide(item.pk, decision="continue", **facts)
    run = scenes.drive(run)
    assert (run.status, run.limit_cost_microusd) == ("succeeded", 14_000)
    assert list(run.grants.order_by("id").values_list("cost_microusd", flat=True)) == [7_000, 7_000]


@pytest.mark.parametrize(
    ("guidance", "words"), [("", "continue"), (WORDS, "continue with guidance")]
)
def test_who_comes_second_hears_what_the_first_one_did(guidance: str, words: str) -> None:
    item = _parked(iterations=1)
    Escalation.objects.filter(pk=item.pk).update(cause=StopReason.YIELD)
    _decide(item, guidance=guidance)
    with pytest.raises(NotPossibleNow, match=f"ada was first: {words}\\."):
        _decide(item, "close")


def test_a_pause_with_rounds_left_takes_no_number_of_rounds() -> None:
    item = _parked(iterations=1)
    Escalation.objects.filter(pk=item.pk).update(cause=StopReason.YIELD)
    with pytest.raises(BadDecision, match="grants no rounds") as caught:
        _decide(item, iterations=5)
    assert caught.value.field == "iterations"
    assert _decide(item).granted_iterations == 0


def test_a_pause_at_the_cap_grants_the_usual_rounds() -> None:
    item = _parked(iterations=3)
    Escalation.objects.filter(pk=item.pk).update(cause=StopReason.YIELD)
    assert _decide(item).granted_iterations == gates.USUAL_ROUNDS
