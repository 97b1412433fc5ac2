"""The counters in Redis: the fast wall in front of the budget rows, rebuilt when lost."""

from __future__ import annotations

import secrets
import time
from dataclasses import astuple
from pathlib import Path

from loops import feed
from loops.core.errors import LoopwardenError
from loops.core.limits import Amount
from loops.store import ledger
from loops.store.ledger import Booking, Scope

_SCRIPT = Path(__file__).with_name("budget.lua").read_text()
_NO_CAP = -1
_ADMITTED = 0
_REBUILD_SECONDS = 10
"""A rebuild that takes longer installs nothing, and somebody else begins."""
_LOOK_AGAIN_SECONDS = 0.02


class Voided(LoopwardenError):
    """A rebuild took this reservation out: it was surely never sent, so ask again."""


def admit(booking: Booking, worst: Amount) -> Scope | None:
    """None when the counters of every scope admit what the rows have admitted, else who refuses.

    Raises `Voided` when counters had to be rebuilt: the rebuild cannot know whether an
    unconfirmed reservation was seen by somebody, so it takes all of them out (PROTOCOL 2.5).
    """
    caps = [_NO_CAP if cap is None else cap for scope in booking.scopes for cap in scope.caps]
    while True:
        answer = _run(booking.scopes, "reserve", booking, *astuple(worst), *caps)
        if answer == _ADMITTED:
            return None
        if answer > 0:
            return booking.scopes[answer - 1]
        missing = [scope for k, scope in enumerate(booking.scopes) if -answer >> k & 1]
        mine = [rebuild(scope) for scope in missing]
        if any(mine):
            raise Voided
        time.sleep(_LOOK_AGAIN_SECONDS)


def settle(booking: Booking, actual: Amount) -> None:
    """Put the real amounts in the place of the reserved ones. Twice is harmless."""
    _run(booking.scopes, "settle", booking, *astuple(actual))


def rebuild(scope: Scope) -> bool:
    """Install the counters from the ledger. False: somebody else is about to.

    1. A nonce says who may install; a second loss in between takes the nonce away with it.
    2. What is unconfirmed is voided, then what counts is summed.
    3. The sum is installed only if the counters are still missing and the nonce is still ours.
    """
    nonce = secrets.token_hex(8)
    if not feed.client().set(_nonce_key(scope), nonce, nx=True, ex=_REBUILD_SECONDS):
        return False
    held = ledger.void_and_sum(scope)
    in_flight = [value for pk, amount in held.in_flight.items() for value in (pk, *astuple(amount))]
    script = feed.client().register_script(_SCRIPT)
    script(
        keys=[key_of(scope), _nonce_key(scope)],
        args=["install", nonce, *astuple(held.total), *in_flight],
    )
    return True


def forget(scope: Scope) -> None:
    """Drop the counters, so that the next reservation rebuilds them from the ledger."""
    feed.client().delete(key_of(scope))


def forget_all() -> None:
    """The same for all of them, after the ledger itself was put back to an earlier state."""
    client = feed.client()
    for key in client.scan_iter("loopwarden:budget:*", count=1000):
        client.delete(key)


def key_of(scope: Scope) -> str:
    """Where the scope's counters stand."""
    return f"loopwarden:budget:{scope.kind}:{scope.id}"


def _nonce_key(scope: Scope) -> str:
    return f"{key_of(scope)}:nonce"


def _run(scopes: tuple[Scope, ...], *args: int | str) -> int:
    script = feed.client().register_script(_SCRIPT)
    return int(script(keys=[key_of(scope) for scope in scopes], args=list(args)))
