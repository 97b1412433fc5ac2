"""L0: every event in every status is either a move of the table or refused without a change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models.functions import Now

from loops import gates, invariants
from loops.core.errors import IllegalMove
from loops.core.lifecycle import MOVES, TERMINAL, RunStatus, StopReason
from loops.core.limits import Amount
from loops.models import (
    Attempt,
    Decision,
    Escalation,
    Event,
    LimitGrant,
    Outbox,
    Reservation,
    Run,
    Step,
)
from loops.store import attempts, ledger, runs
from tests.engine import rows
from workers import dispatch, sweeper

pytestmark = pytest.mark.django_db

Q, R, G = RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.AT_GATE
EVERYWHERE = frozenset(RunStatus)
NOT_ENDED = EVERYWHERE - TERMINAL
WORST = Amount(model_calls=1, tokens=10, cost_microusd=100)
LATE = Now() - 100 * rows.AGO


@dataclass(frozen=True)
class Scene:
    """A run in some status, with what earlier events left: a claim and an item at the gate."""

    run: Run
    claim: attempts.Claim
    item: int
    reservation: int


@dataclass(frozen=True)
class Rule:
    """What an event does: the status that follows, by the one before. Elsewhere it is refused."""

    act: Callable[[Scene], Any]
    leads: dict[RunStatus, RunStatus]
    before: dict[str, Any] = field(default_factory=dict)
    """What makes it possible: columns of the run, such as a lease that ran out, `sent_at` of its
    wake-up, or the `cause` of its item."""


def scene(status: RunStatus) -> Scene:
    """One judged attempt, one decided item, a second attempt; then the status."""
    run, first = rows.claimed()
    kept = rows.ending(G, stop_reason=StopReason.ITERATIONS)
    assert gates.park(first, kept, _proposal("first"))
    decided = run.escalations.get()
    user = User.objects.get_or_create(username="ann")[0]
    gates.decide(decided.pk, decision="continue", digest=decided.digest, user=user, guidance="go")
    rows.change(run, admitted_at=Now())
    Outbox.objects.create(run=run, attempt_no=2)
    if status is Q:
        return Scene(run, first, decided.pk, 0)
    claim = rows.take(run)
    reservation = rows.sent(claim, WORST)
    if status is R:
        return Scene(run, claim, decided.pk, reservation)
    ledger.settle(claim, 1, reservation, rows.answer(tokens=1, cost_microusd=1))
    if status is G:
        assert gates.park(claim, kept, _proposal("second"))
        return Scene(run, claim, run.escalations.latest("pk").pk, reservation)
    assert attempts.finish(claim, rows.ending(status, stop_reason=StopReason.ERRORS))
    return Scene(run, claim, decided.pk, reservation)


def _proposal(why: str) -> gates.Proposal:
    return gates.Proposal(
        cause=StopReason.ITERATIONS, reason=why, packet={"why": why}, allowed=tuple(Decision)
    )


def _decide(decision: Decision) -> Callable[[Scene], Any]:
    def act(at: Scene) -> Any:
        item = Escalation.objects.get(pk=at.item)
        user = User.objects.get(username="ann")
        with suppress(gates.NotPossibleNow):
            gates.decide(
                item.pk, decision=decision, digest=item.digest, user=user, guidance="in words"
            )

    return act


def _in_transaction(act: Callable[[Run], Any]) -> Callable[[Scene], Any]:
    def moved(at: Scene) -> None:
        at.run.refresh_from_db()
        with suppress(IllegalMove, runs.MovedOn), transaction.atomic():
            act(at.run)

    return moved


def _move(status: RunStatus) -> Callable[[Run], Any]:
    return lambda run: runs.move(
        run, status, stop_reason=StopReason.ERRORS, reason="moved", actor="x", kind="moved"
    )


def _end_cancelled(run: Run) -> None:
    runs.end_cancelled(run, actor="system")
    gates.withdraw(run.pk)


def _finish(status: RunStatus) -> Callable[[Scene], Any]:
    def act(at: Scene) -> None:
        with suppress(IllegalMove):
            attempts.finish(at.claim, rows.ending(status, stop_reason=StopReason.ERRORS))

    return act


def _reserve(at: Scene) -> None:
    with suppress(ledger.LeaseLost):
        ledger.reserve(at.claim, rows.call(2), WORST)


def _settle(at: Scene) -> None:
    ledger.settle(at.claim, 1, at.reservation, rows.answer(tokens=1, cost_microusd=1))


def _park_alone(at: Scene) -> None:
    at.run.refresh_from_db()
    with suppress(IllegalMove, runs.MovedOn):
        gates.park_without_worker(at.run, _proposal("parked"), reason="parked")


def _unask(at: Scene) -> None:
    with suppress(IllegalMove, runs.MovedOn):
        gates.take_back(Escalation.objects.get(pk=at.item))


def _stays(*statuses: RunStatus) -> dict[RunStatus, RunStatus]:
    return {status: status for status in statuses}


GOES_ON = {
    Decision.CONTINUE: Q, Decision.REFACTOR: Q, Decision.APPROVE: Q, Decision.REJECT: Q,
    Decision.ANSWER: Q, Decision.HAPPENED: Q, Decision.NOT_HAPPENED: Q,
    Decision.ACCEPT: RunStatus.SUCCEEDED, Decision.CLOSE: RunStatus.ESCALATED,
}  # fmt: skip
GOVERNS = {
    Decision.APPROVE: RunStatus.SUCCEEDED,
    Decision.REJECT: RunStatus.ESCALATED,
    Decision.CHANGE_GOAL: RunStatus.ESCALATED,
}
TO_CANCELLED = dict.fromkeys(NOT_ENDED, RunStatus.CANCELLED)
EVENTS: dict[str, Rule] = {
    "claim": Rule(lambda at: attempts.claim(at.run.pk, 2, worker="w2"), {Q: R}),
    "claim a stale number": Rule(lambda at: attempts.claim(at.run.pk, 1, worker="w2"), {}),
    "claim a later number": Rule(lambda at: attempts.claim(at.run.pk, 3, worker="w2"), {}),
    "claim unadmitted": Rule(
        lambda at: attempts.claim(at.run.pk, 2, worker="w2"), {}, {"admitted_at": None}
    ),
    "claim before its time": Rule(
        lambda at: attempts.claim(at.run.pk, 2, worker="w2"), {}, {"next_at": Now() + 9 * rows.AGO}
    ),
    "claim past the deadline": Rule(
        lambda at: attempts.claim(at.run.pk, 2, worker="w2"), {}, {"deadline_at": LATE}
    ),
    "claim a cancelled one": Rule(
        lambda at: attempts.claim(at.run.pk, 2, worker="w2"), {}, {"cancel_requested": True}
    ),
    "heartbeat": Rule(lambda at: attempts.renew(at.claim), _stays(R)),
    "heartbeat of a lost lease": Rule(
        lambda at: attempts.renew(at.claim), {}, {"lease_expires_at": LATE}
    ),
    "heartbeat past the attempt's time": Rule(
        lambda at: attempts.renew(at.claim), {}, {"attempt_deadline_at": LATE}
    ),
    "reserve": Rule(_reserve, _stays(R)),
    "reserve after a cancel": Rule(_reserve, {}, {"cancel_requested": True}),
    "reserve without the lease": Rule(_reserve, {}, {"lease_expires_at": LATE}),
    "settle": Rule(_settle, _stays(R)),
    "release what was sent": Rule(lambda at: ledger.release(at.reservation), {}),
    "hand back": Rule(lambda at: attempts.hand_back(at.claim, why="drains"), {R: Q}),
    "take back": Rule(
        lambda at: attempts.take_back(Run.objects.get(pk=at.run.pk)),
        {R: Q},
        {"lease_expires_at": LATE},
    ),
    "take back too early": Rule(lambda at: attempts.take_back(Run.objects.get(pk=at.run.pk)), {}),
    "finish as running": Rule(_finish(R), {}),
    "park": Rule(
        lambda at: gates.park(
            at.claim, rows.ending(G, stop_reason=StopReason.APPROVAL), _proposal("parked")
        ),
        {R: G},
    ),
    "park without worker": Rule(_park_alone, {Q: G, R: G}),
    "unpark": Rule(_unask, {G: Q}),
    "cancel": Rule(lambda at: gates.cancel(at.run, actor="ann"), {**TO_CANCELLED, R: R}),
    "cancel made final": Rule(_in_transaction(_end_cancelled), TO_CANCELLED),
    "sweep": Rule(lambda _: sweeper.run_pass(), {}),
    "sweep of a lost lease": Rule(lambda _: sweeper.run_pass(), {R: Q}, {"lease_expires_at": LATE}),
    "sweep past the deadline": Rule(
        lambda _: sweeper.run_pass(),
        dict.fromkeys(NOT_ENDED, RunStatus.BUDGET_EXHAUSTED),
        {"deadline_at": LATE},
    ),
    "sweep of a cancel": Rule(
        lambda _: sweeper.run_pass(), {**TO_CANCELLED, R: R}, {"cancel_requested": True}
    ),
    "sweep of a lost message": Rule(
        lambda _: sweeper.run_pass(), _stays(Q), {"admitted_at": LATE, "sent_at": LATE}
    ),
    "dispatch": Rule(lambda _: dispatch.admit_waiting(), {}),
    "admit": Rule(lambda at: attempts.admit(at.run.pk, 2), _stays(Q), {"admitted_at": None}),
    "admit twice": Rule(lambda at: attempts.admit(at.run.pk, 2), {}),
    "admit another number": Rule(
        lambda at: attempts.admit(at.run.pk, 1), {}, {"admitted_at": None}
    ),
    "withdraw": Rule(
        lambda at: attempts.withdraw_admission(Run.objects.get(pk=at.run.pk)), _stays(Q)
    ),
    **{
        f"finish as {status}": Rule(_finish(status), {R: status})
        for status in RunStatus
        if status not in (R, G)
    },
    **{
        f"move to {status}": Rule(
            _in_transaction(_move(status)),
            {old: status for old in RunStatus if status in MOVES[old]} if status is not R else {},
        )
        for status in RunStatus
        if status not in (R, G)
    },
    **{
        f"decide {decision}": Rule(_decide(decision), {G: status})
        for decision, status in GOES_ON.items()
    },
    **{
        f"govern {decision}": Rule(_decide(decision), {G: status}, {"cause": StopReason.GOVERNOR})
        for decision, status in GOVERNS.items()
    },
}


def _prepare(at: Scene, status: RunStatus, before: dict[str, Any]) -> None:
    columns = dict(before)
    if "cause" in columns:
        Escalation.objects.filter(pk=at.item).update(cause=columns.pop("cause"))
    if "sent_at" in columns:
        Outbox.objects.filter(run=at.run).update(sent_at=columns.pop("sent_at"))
    # Only a run at work has a lease, says a constraint, and it was admitted, says I5.
    impossible = ("admitted_at",) if status is R else LEASE
    columns = {name: value for name, value in columns.items() if name not in impossible}
    rows.change(at.run, **columns)


LEASE = ("lease_expires_at", "attempt_deadline_at")
TABLES = (Run, Attempt, Step, Reservation, Escalation, LimitGrant, Outbox, Event)


def _everything() -> list[dict[str, Any]]:
    return [row for table in TABLES for row in table.objects.order_by("pk").values()]


@pytest.mark.parametrize("status", RunStatus)
def test_every_event_moves_by_the_table_or_changes_nothing(status: RunStatus) -> None:
    at, wrong = scene(status), []
    for event, rule in EVENTS.items():
        with transaction.atomic():
            wrong += [f"{event}: {problem}" for problem in _problems(event, rule, at, status)]
            transaction.set_rollback(True)
    assert wrong == []


def _problems(event: str, rule: Rule, at: Scene, status: RunStatus) -> Iterator[str]:
    at.run.refresh_from_db()
    _prepare(at, status, rule.before)
    before = _everything()
    rule.act(at)
    at.run.refresh_from_db()
    wanted = rule.leads.get(status, status)
    if at.run.status != wanted:
        yield f"it is {at.run.status}, not {wanted}"
    if status not in rule.leads and _everything() != before:
        yield "it was refused and changed something"
    # A bare move leaves what belongs to it, such as the item at the gate, to its caller.
    if not event.startswith("move"):
        yield from map(str, invariants.check(swept=False))


def test_every_move_of_the_table_is_made_by_some_event() -> None:
    made = {(old, new) for rule in EVENTS.values() for old, new in rule.leads.items() if old != new}
    assert made == {(old, new) for old, news in MOVES.items() for new in news}
    assert len(EVENTS) * len(RunStatus) == PAIRS


PAIRS = 464
"""Of an event and a status; none is left out."""
