"""The counters in Redis in front of the ledger, through losses and races."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from loops import feed
from loops.core.errors import LimitReached
from loops.core.limits import Amount
from loops.models import Run
from loops.store import attempts, days, ledger
from tests.engine import rows, scenes
from workers import budgets, recorder
from workers.lease import Lease
from workers.recorder import CountersAway, Performed, Recorder

pytestmark = pytest.mark.django_db(transaction=True)

CALL = Amount(model_calls=1, tokens=100, cost_microusd=1_000)


def _recorder(run: Run, claim: attempts.Claim, first_seq: int = 0) -> Recorder:
    made = Recorder(Lease(claim, []), replayable=lambda _: True)
    made._seq = first_seq
    return made


def _ask(using: Recorder, worst: Amount, act: Any) -> Performed:
    facts = {"kind": "model_call", "role": "coder", "name": "agent", "digest": "d"}
    return using.step(**facts, worst=worst, act=act)


def _used(tokens: int, cost: int = 0) -> Performed:
    usage = Amount(model_calls=1, tokens=tokens, cost_microusd=cost)
    return Performed(result={}, usage=usage)


def test_rc069_of_calls_made_at_once_only_those_that_fit_are_made() -> None:
    run, claim = rows.claimed(limit_cost_microusd=1_000_000)
    worst = Amount(model_calls=1, cost_microusd=400_000)
    refused, done = threading.Semaphore(0), threading.Event()
    peaks: list[int] = []

    def act() -> Performed:
        assert done.wait(60)
        run.refresh_from_db()
        peaks.append(run.used.cost_microusd + run.reserved.cost_microusd)
        return _used(0, 400_000)

    def one(number: int) -> str:
        if number == 8:
            for _ in range(6):
                assert refused.acquire(timeout=60)
            done.set()
            return "watched"
        try:
            _ask(_recorder(run, claim, 10 * number), worst, act)
        except LimitReached as error:
            refused.release()
            return error.axis
        return "admitted"

    answers = rows.together(9, one)
    assert sorted(map(str, answers)) == ["admitted"] * 2 + ["cost"] * 6 + ["watched"]
    assert max(peaks) == 800_000


def test_counters_that_are_gone_are_rebuilt_from_the_ledger() -> None:
    run, claim = rows.claimed(limit_tokens=1_000)
    mine = _recorder(run, claim)
    _ask(mine, CALL, lambda: _used(70))
    feed.client().flushall()
    _ask(mine, CALL, lambda: _used(20))
    assert rows.counters(run)["tokens"] == 90
    assert rows.states(run) == ["void", "settled", "void", "settled"]


def test_a_sum_that_a_second_loss_made_stale_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, claim = rows.claimed(limit_tokens=1_000)
    void_and_sum = ledger.void_and_sum

    def lost_again(scope: ledger.Scope) -> ledger.Held:
        held = void_and_sum(scope)
        feed.client().flushall()
        rows.sent(claim, CALL)
        return held

    monkeypatch.setattr(ledger, "void_and_sum", lost_again)
    budgets.rebuild(rows.scope(run))
    assert rows.counters(run) == {}
    monkeypatch.undo()
    budgets.rebuild(rows.scope(run))
    assert rows.counters(run)["tokens"] == 100


def test_of_two_rebuilds_one_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    run, claim = rows.claimed(limit_tokens=1_000)
    void_and_sum, answers = ledger.void_and_sum, []

    def while_another_begins(scope: ledger.Scope) -> ledger.Held:
        held = void_and_sum(scope)
        answers.append(budgets.rebuild(scope))
        return held

    monkeypatch.setattr(ledger, "void_and_sum", while_another_begins)
    assert budgets.rebuild(rows.scope(run))
    assert answers == [False]
    rows.sent(claim, CALL)
    assert rows.counters(run)["tokens"] == 0


def test_counters_above_the_ledger_are_healed_once() -> None:
    run, claim = rows.claimed(limit_tokens=1_000)
    mine = _recorder(run, claim)
    _ask(mine, CALL, lambda: _used(70))
    feed.client().hincrby(budgets.key_of(rows.scope(run)), "tokens", 5_000)
    _ask(mine, CALL, lambda: _used(20))
    assert rows.counters(run)["tokens"] == 90


def test_counters_that_still_refuse_send_the_attempt_back(monkeypatch: pytest.MonkeyPatch) -> None:
    run, claim = rows.claimed(limit_tokens=1_000)
    monkeypatch.setattr(budgets, "admit", lambda *_: rows.scope(run))
    with pytest.raises(CountersAway, match="counters of the run contradict"):
        _ask(_recorder(run, claim), CALL, lambda: _used(1))
    assert rows.states(run) == ["released"] * 6


def test_a_settled_call_is_settled_once_in_the_counters() -> None:
    run, claim = rows.claimed(limit_tokens=1_000)
    booking = ledger.reserve(claim, rows.call(), CALL)
    for scope in booking.scopes:
        budgets.rebuild(scope)
    booking = ledger.reserve(claim, rows.call(), CALL)
    for _ in range(2):
        assert budgets.admit(booking, CALL) is None
    assert rows.counters(run)["tokens"] == 100
    for _ in range(2):
        budgets.settle(booking, Amount(model_calls=1, tokens=30))
    assert rows.counters(run)["tokens"] == 30


def test_a_call_cancelled_at_the_last_moment_leaves_nothing_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, claim = rows.claimed(limit_tokens=1_000)
    budgets.rebuild(rows.scope(run))
    budgets.rebuild(rows.scope(days.today(run.task.project_id)))
    admit = budgets.admit

    def cancelled(*args: Any) -> ledger.Scope | None:
        rows.change(run, cancel_requested=True)
        return admit(*args)

    monkeypatch.setattr(budgets, "admit", cancelled)
    with pytest.raises(ledger.LeaseLost):
        _ask(_recorder(run, claim), CALL, lambda: _used(1))
    run.refresh_from_db()
    assert (run.reserved.tokens, rows.counters(run)["tokens"]) == (0, 0)


def test_an_attempt_goes_back_when_redis_is_away_and_the_run_goes_on_when_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = scenes.pair_task([scenes.code("one")], [scenes.APPROVED]).runs.get()

    def away(point: str) -> None:
        if point == "recorded-1":
            patch.setattr(feed, "client", rows.nowhere)

    with monkeypatch.context() as patch:
        patch.setattr(feed, "_silent_until", 0.0)
        patch.setattr(recorder, "reach", away)
        scenes.step(run)
    assert (run.status, run.attempt_no, run.errors) == ("queued", 1, 0)
    assert (run.used.model_calls, run.reserved.model_calls) == (1, 0)
    assert run.events.filter(kind="handed_back", text__contains="Redis is away").exists()
    scenes.drive(run)
    assert (run.status, run.iterations, run.used.model_calls) == ("succeeded", 1, 2)


def test_rc075_every_reply_is_charged_that_nobody_could_read() -> None:
    reply = {"text": "no code here", "input_tokens": 0, "output_tokens": 50_000}
    task = scenes.pair_task([reply] * 3, [], cost_microusd=1_200_000, on_limit="stop")
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason) == ("at_gate", "coder_unusable_answer")
    assert (run.used.model_calls, run.used.cost_microusd) == (2, 1_000_000)
    rows.change(run, status="queued", stop_reason="")
    scenes.drive(run)
    assert (run.status, run.stop_reason) == ("budget_exhausted", "cost")
    assert (run.used.model_calls, run.used.cost_microusd) == (2, 1_000_000)
