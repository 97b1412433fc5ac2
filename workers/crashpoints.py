"""Named places at which a test lets a worker die, freeze or throw."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path


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
