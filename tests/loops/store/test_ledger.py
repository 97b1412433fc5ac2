"""The ledger: what is reserved, settled, given back and charged."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from django.db.models.functions import Now

from loops.core.errors import LimitReached
from loops.core.limits import Amount
from loops.models import Run
from loops.store import ledger, runs
from tests.engine import rows

pytestmark = pytest.mark.django_db(transaction=True)

CALL = Amount(model_calls=1, tokens=100, cost_microusd=1_000)
LIMITS = {"limit_model_calls": 3, "limit_tokens": 250, "limit_cost_microusd": 9_000}


def _figures(run: Run) -> tuple[dict[str, int], dict[str, int]]:
    run.refresh_from_db()
    return asdict(run.used), asdict(run.reserved)


def test_a_call_is_reserved_in_full_and_settled_by_what_it_used() -> None:
    run, claim = rows.claimed(**LIMITS)
    reservation = rows.sent(claim, CALL)
    assert _figures(run) == (asdict(Amount()), asdict(CALL))
    assert ledger.settle(claim, 1, reservation, rows.answer(tokens=40, cost_microusd=300))
    assert _figures(run)[0] == asdict(Amount(model_calls=1, tokens=40, cost_microusd=300))
    assert _figures(run)[1] == asdict(Amount())
    attempt = run.attempts.get()
    assert (attempt.used_tokens, attempt.used_cost_microusd) == (40, 300)


@pytest.mark.parametrize(
    ("axis", "cap", "asked"),
    [
        ("model_calls", 4, Amount(model_calls=1)),
        ("tool_calls", 5, Amount(tool_calls=2)),
        ("tokens", 500, Amount(model_calls=1, tokens=101)),
        ("cost_microusd", 7_000, Amount(model_calls=1, cost_microusd=3_001)),
    ],
)
def test_a_refusal_says_axis_used_reserved_asked_and_cap(
    axis: str, cap: int, asked: Amount
) -> None:
    used, reserved = cap - getattr(asked, axis) - 1, 2
    facts = {f"limit_{axis}": cap, f"used_{axis}": used, f"reserved_{axis}": reserved}
    run, claim = rows.claimed(**facts)
    with pytest.raises(LimitReached) as caught:
        ledger.reserve(claim, rows.call(), asked)
    error = caught.value
    assert error.axis == axis.removesuffix("_microusd")
    assert (error.used, error.reserved, error.cap) == (used, reserved, cap)
    assert error.asked == getattr(asked, axis)
    assert rows.states(run) == []
    rows.change(run, **{f"reserved_{axis}": 1})
    assert ledger.reserve(claim, rows.call(), asked)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"lease_token": 2}, id="taken over"),
        pytest.param({"lease_expires_at": Now() - rows.AGO}, id="lease ran out"),
        pytest.param({"cancel_requested": True}, id="cancelled"),
        pytest.param({"deadline_at": Now() - rows.AGO}, id="past its deadline"),
    ],
)
def test_nothing_is_reserved_or_sent_without_the_lease(facts: dict[str, Any]) -> None:
    run, claim = rows.claimed(**LIMITS)
    waiting = ledger.reserve(claim, rows.call(), CALL)
    rows.change(run, **facts)
    with pytest.raises(ledger.LeaseLost):
        ledger.reserve(claim, rows.call(2), CALL)
    if "deadline_at" not in facts:
        assert not ledger.send(waiting)


def test_unknown_usage_is_charged_in_full() -> None:
    run, claim = rows.claimed(**LIMITS)
    assert ledger.settle(claim, 1, rows.sent(claim, CALL), rows.answer())
    assert _figures(run) == (asdict(CALL), asdict(Amount()))
    assert rows.states(run) == ["unknown"]


def test_what_a_provider_used_above_its_worst_case_is_kept_apart_and_counts() -> None:
    run, claim = rows.claimed(**LIMITS)
    over = rows.answer(tokens=260, cost_microusd=1_500)
    assert ledger.settle(claim, 1, rows.sent(claim, CALL), over)
    run.refresh_from_db()
    assert (run.used_tokens, run.overrun_tokens) == (100, 160)
    assert (run.used_cost_microusd, run.overrun_cost_microusd) == (1_000, 500)
    assert run.used.tokens == 260
    with pytest.raises(LimitReached, match="tokens"):
        ledger.reserve(claim, rows.call(2), CALL)


def test_an_axis_that_a_call_does_not_use_does_not_refuse_it() -> None:
    """A check after a model call that overran the token cap uses no token."""
    _, claim = rows.claimed(**LIMITS)
    assert ledger.settle(
        claim, 1, rows.sent(claim, CALL), rows.answer(tokens=260, cost_microusd=1_000)
    )
    assert ledger.reserve(claim, rows.call(2), Amount(tool_calls=1))


def test_a_released_reservation_costs_nothing() -> None:
    run, claim = rows.claimed(**LIMITS)
    reservation = ledger.reserve(claim, rows.call(), CALL)
    ledger.release(reservation)
    ledger.release(reservation)
    assert _figures(run) == (asdict(Amount()), asdict(Amount()))
    assert rows.states(run) == ["released"]


def test_what_a_dead_worker_left_is_closed_once() -> None:
    run, claim = rows.claimed(limit_tokens=1_000)
    in_flight = rows.sent(claim, CALL)
    ledger.reserve(claim, rows.call(2), CALL)
    assert ledger.close_lost(run.pk, claim.token) == 0
    assert ledger.close_lost(run.pk, claim.token + 1) == 2
    assert ledger.close_lost(run.pk, claim.token + 1) == 0
    assert rows.states(run) == ["unknown", "released"]
    assert _figures(run) == (asdict(CALL), asdict(Amount()))
    ledger.settle(claim, 1, in_flight, rows.answer(tokens=1, cost_microusd=1))
    assert _figures(run) == (asdict(CALL), asdict(Amount()))


def test_two_sweepers_close_what_is_lost_once() -> None:
    run, claim = rows.claimed()
    for seq in range(1, 9):
        rows.sent(claim, CALL, seq)
    closed = rows.together(4, lambda _: ledger.close_lost(run.pk, 0))
    assert sum(map(int, closed)) == 8  # type: ignore[arg-type]
    assert _figures(run)[0]["tokens"] == 800
    assert _figures(run)[1]["tokens"] == 0


def test_a_rebuild_voids_what_is_surely_unsent_and_sums_the_rest() -> None:
    run, claim = rows.claimed(limit_tokens=1_000)
    ledger.settle(claim, 1, rows.sent(claim, CALL, 1), rows.answer(tokens=30, cost_microusd=20))
    ledger.settle(claim, 2, rows.sent(claim, CALL, 2), rows.answer())
    sent = rows.sent(claim, CALL, 3)
    unsent = ledger.reserve(claim, rows.call(4), CALL)
    held = ledger.void_and_sum(rows.scope(run))
    assert held.total == Amount(model_calls=3, tokens=230, cost_microusd=2_020)
    assert held.in_flight == {sent: CALL}
    assert rows.states(run) == ["settled", "unknown", "in_flight", "void"]
    assert not ledger.send(unsent)
    assert _figures(run)[1] == asdict(CALL)


@pytest.mark.parametrize("closing", ["void", "release", "lost"])
def test_a_call_that_was_sent_meanwhile_is_never_given_back(
    closing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call goes out between the look at its reservation and the closing."""
    run, claim = rows.claimed()
    reservation = ledger.reserve(claim, rows.call(), CALL)
    close = ledger._close

    def too_late(*args: Any, **facts: Any) -> int:
        assert ledger.send(reservation)
        return close(*args, **facts)

    monkeypatch.setattr(ledger, "_close", too_late)
    match closing:
        case "void":
            assert ledger.void_and_sum(rows.scope(run)).total == CALL
        case "release":
            ledger.release(reservation)
        case "lost":
            assert ledger.close_lost(run.pk, claim.token + 1) == 0
    assert rows.states(run) == ["in_flight"]
    assert _figures(run)[1] == asdict(CALL)


def test_a_refusal_that_no_longer_holds_is_no_lost_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another call settles between the refusal and the look for its reason."""
    run, claim = rows.claimed(limit_tokens=150)
    first = rows.sent(claim, CALL)
    refusal = ledger._refusal

    def settled_meanwhile(*args: Any) -> Any:
        ledger.settle(claim, 1, first, rows.answer(tokens=10, cost_microusd=1))
        return refusal(*args)

    monkeypatch.setattr(ledger, "_refusal", settled_meanwhile)
    assert ledger.reserve(claim, rows.call(2), CALL)
    assert _figures(run)[1]["tokens"] == 100


def test_a_grant_is_a_row_of_its_own() -> None:
    run = rows.queued()
    runs.grant(run, {"iterations": 2}, granted_by=None)
    run.refresh_from_db()
    assert run.limit_iterations == 5
    assert list(run.grants.order_by("id").values_list("iterations", flat=True)) == [3, 2]
