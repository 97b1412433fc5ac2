"""Ctrl-C and SIGTERM: the first unwinds the program in order, the next one ends it at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """While installed, the first signal raises KeyboardInterrupt in the main thread.

    Once `stopping` is set, a signal calls `kill_all` and ends the process.
    """

    def __init__(self, kill_all: Callable[[], None]) -> None:
        self._kill_all = kill_all
        self._before: dict[signal.Signals, Any] = {}
        self.stopping = False

    def install(self) -> None:
        for number in STOPPING:
            # Under nohup the hang-up stays ignored.
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, self._received)

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _received(self, number: int, _frame: FrameType | None) -> None:
        if self.stopping:
            self._kill_all()
            os._exit(128 + number)
        self.stopping = True
        raise KeyboardInterrupt
