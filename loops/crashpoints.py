"""Named places at which a test lets a process die, freeze or throw."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Point:
    """What is true at a place, and who goes on from there."""

    protocol: str
    """Its number among the crash points of the protocol."""
    true_then: str
    goes_on: str
    in_transaction: bool = False
    """It holds its rows, so a frozen process keeps everybody else waiting for them."""


POINTS: Mapping[str, Point] = {
    "submitting": Point("C0", "nothing is stored", "the client, with the same key", True),
    "submitted": Point("C1", "the run is queued, nobody was told", "any dispatcher"),
    "acquired": Point("C1", "slots are taken, no run is admitted", "any dispatcher, same slots"),
    "admitted": Point("C1", "the outbox row is unsent", "any dispatcher"),
    "published": Point("C2", "a second message will come", "the claim finds nothing to do"),
    "delivered": Point("C3, C4", "the message is gone", "the sweeper, after 3 to 30 s"),
    "claiming": Point("C4, C14", "nothing of the claim is stored", "as after delivered", True),
    "claimed": Point("C5", "the lease runs out", "the sweeper: same number, next token"),
    "begun": Point("C5", "lease and slots run out", "the sweeper: same number, next token"),
    "reserved": Point("C6", "surely not sent", "given back in full"),
    "counted": Point("C6", "surely not sent, but counted in Redis", "given back in full"),
    "sent": Point("C7, C11", "it may be spent or done", "charged in full; an effect is asked for"),
    "answered": Point("C9, C11", "the answer is lost", "charged in full; an effect is asked for"),
    "settled": Point("C10", "recorded, Redis counts the worst case", "the next rebuild"),
    "recorded-N": Point("C10", "step N is replayed, at no cost", "the next claim"),
    "decided": Point("C10", "every step is replayed", "the next claim"),
    "finishing": Point("C14", "all of the end is stored or nothing", "the next claim", True),
    "parked": Point("C14", "run and item are both stored or neither", "the next claim", True),
    "finished": Point("C12", "queued, its slots not freed", "any dispatcher"),
    "freed": Point("C12", "queued, no next wake-up", "any dispatcher"),
    "deciding": Point("C14", "the item is open, the run at the gate", "the person, again", True),
    "approved": Point("C11", "decided, nothing sent", "the next claim, under the same decision"),
    "closing": Point("C7", "some lost reservations are closed", "the next sweep"),
    "taken-back": Point("C5", "queued, its slots not freed", "the next sweep"),
    "child-ended": Point("C10", "a node's run has ended, its graph has not heard", "any pass"),
    "signal-recorded": Point("C14", "nothing of the graph's move is stored", "any pass", True),
    "child-submitted": Point("C14", "nothing of the graph's move is stored", "any pass", True),
    "governor-asked": Point("C14", "nothing of the graph's move is stored", "any pass", True),
    "graph-moved": Point("C12", "the next nodes are queued, nobody was told", "any dispatcher"),
}
"""All of them. C8 is a failed call, C13 each of them frozen; C15 to C17 have no place in code."""


class Crash(BaseException):
    """A death that is only thrown: no handler of the product may catch it."""


def _throw() -> None:
    raise Crash


_MODES: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(1),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": _throw,
}
MODES = tuple(_MODES)


def reach(point: str) -> None:
    """Crash here, once, when `LOOPWARDEN_CRASHPOINT` is `<point>[:<mode>]@<marker file>`.

    Modes are `kill` (the usual one), `exit` (without clean-up), `stop` (frozen until somebody
    sends SIGCONT) and `raise`.
    """
    wanted, _, marker = os.environ.get("LOOPWARDEN_CRASHPOINT", "").partition("@")
    name, _, mode = wanted.partition(":")
    if name != point:
        return
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return
    _MODES[mode or "kill"]()
