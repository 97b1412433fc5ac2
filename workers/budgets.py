"""The counters in Redis: the fast wall in front of a run's row, rebuilt from it when lost."""

from __future__ import annotations

import secrets
from dataclasses import astuple
from pathlib import Path

from loops import feed
from loops.core.errors import LoopwardenError
from loops.core.limits import Amount, Limits
from loops.store import ledger

_SCRIPT = Path(__file__).with_name("budget.lua").read_text()
_MISSING = -1


class Voided(LoopwardenError):
    """A rebuild took this reservation out: it was surely never sent, so ask again."""


def _run(run_id: int, *args: int | str) -> int:
    key = f"loopwarden:budget:{run_id}"
    script = feed.client().register_script(_SCRIPT)
    return int(script(keys=[key, f"{key}:nonce"], args=list(args)))


def admit(run_id: int, reservation_id: int, worst: Amount, limits: Limits) -> bool:
    """Whether the counters admit a reservation that the row has admitted.

    Raises `Voided` when the counters had to be rebuilt: the rebuild cannot know whether an
    unconfirmed reservation was seen by somebody, so it takes all of them out (PROTOCOL 2.5).
    """
    caps = [
        -1 if cap is None else cap
        for cap in (limits.model_calls, limits.tool_calls, limits.tokens, limits.cost_microusd)
    ]
    answer = _run(run_id, "reserve", reservation_id, *astuple(worst), *caps)
    if answer == _MISSING:
        rebuild(run_id)
        raise Voided
    return answer == 1


def settle(run_id: int, reservation_id: int, actual: Amount) -> None:
    """Put the real amounts in the place of the reserved ones. Twice is harmless."""
    _run(run_id, "settle", reservation_id, *astuple(actual))


def rebuild(run_id: int) -> None:
    """Install the counters from the ledger.

    1. A nonce says who may install; a second loss in between takes the nonce away with it.
    2. One transaction voids what is unconfirmed and sums what counts.
    3. The sum is installed only if the counters are still missing and the nonce is still ours.
    """
    nonce = secrets.token_hex(8)
    feed.client().set(f"loopwarden:budget:{run_id}:nonce", nonce, ex=60)
    total = ledger.void_and_sum(run_id)
    _run(run_id, "install", nonce, *astuple(total))


def forget(run_id: int) -> None:
    """Drop the counters, so that the next reservation rebuilds them from the ledger."""
    feed.client().delete(f"loopwarden:budget:{run_id}")


def forget_all() -> None:
    """The same for every run, after the ledger itself was put back to an earlier state."""
    client = feed.client()
    for key in client.scan_iter("loopwarden:budget:*", count=1000):
        client.delete(key)
