"""Crashes and freezes at chosen moments of one thread: at a crash point, or between two statements.

A crash is thrown, so the process lives on and its memory is gone with the stack. A freeze holds a
thread until somebody lets it go on; the test waits until it is held, so nothing is a race.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from loops import crashpoints, feed
from loops.crashpoints import Crash

_mine = threading.local()
COMMANDS = ("install", "trust")
"""Commands of the scripts in Redis that are a point of their own: just before they are run."""
_MOST_STATEMENTS = 3_000
"""Nothing that is held needs so many to come to its end."""


class Held:
    """A thread that runs `act` and may be held at one point, or before its n-th statement."""

    def __init__(self, act: Callable[[], Any], point: str, marker: Path) -> None:
        self.statements = 0
        self.error: BaseException | None = None
        self._act = act
        self._point = point
        self._marker = marker
        self._arrived, self._go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> bool:
        """Run until it is held. False: it ended without coming to the point."""
        with _crashpoint(f"{self._point}:hold", self._marker):
            self._thread.start()
            assert self._arrived.wait(120)
        return self._thread.is_alive() and not self._go_on.is_set()

    def finish(self) -> None:
        """Let it go on to its end. Raises what it raised."""
        self._go_on.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.error is not None and not isinstance(self.error, Crash):
            raise self.error

    def _run(self) -> None:
        _mine.held, _mine.point = self, self._point
        _mine.statements = int(self._point) if self._point.isdigit() else -1
        try:
            with connection.execute_wrapper(_hold_between):
                self._act()
        except BaseException as error:
            self.error = error
        finally:
            self._go_on.set()
            self._arrived.set()
            connection.close()

    def wait(self) -> None:
        """Stand still here, in the held thread itself."""
        _mine.point = ""
        self._arrived.set()
        self._go_on.wait(120)


def pass_point(point: str) -> None:
    """A point of the test's own, such as the provider's side of a call."""
    if getattr(_mine, "point", "") == point:
        _mine.held.wait()
    if getattr(_mine, "crash", "") == point:
        _mine.crash = ""
        raise Crash


def crash_at(act: Callable[[], Any], point: str, marker: Path) -> bool:
    """Run `act` with a crash at a named point, or before its n-th statement. Whether it crashed."""
    _mine.crash, _mine.statements = point, int(point) if point.isdigit() else -1
    try:
        with _crashpoint(f"{point}:raise", marker), connection.execute_wrapper(_crash_before):
            act()
    except Crash:
        return True
    finally:
        _mine.crash, _mine.statements = "", -1
    return False


def _crash_before(execute: Callable[..., Any], *args: Any) -> Any:
    _mine.statements -= 1
    if _mine.statements == -1:
        raise Crash
    return execute(*args)


def _hold_between(execute: Callable[..., Any], *args: Any) -> Any:
    _mine.held.statements += 1
    assert _mine.held.statements < _MOST_STATEMENTS, "it goes round in circles"
    # A thread that is held inside a transaction would keep everybody else waiting for its rows.
    if _mine.statements >= 0 and not connection.in_atomic_block:
        _mine.statements -= 1
        if _mine.statements == -1:
            _mine.held.wait()
    return execute(*args)


@contextmanager
def _crashpoint(value: str, marker: Path) -> Iterator[None]:
    marker.unlink(missing_ok=True)
    os.environ["LOOPWARDEN_CRASHPOINT"] = f"{value}@{marker}"
    try:
        yield
    finally:
        del os.environ["LOOPWARDEN_CRASHPOINT"]


def _hold() -> None:
    _mine.held.wait()


def install(monkeypatch: pytest.MonkeyPatch, begun: Callable[[str], None]) -> None:
    """Let crash points hold threads, make points of `COMMANDS`, and say which attempts began."""
    monkeypatch.setitem(crashpoints._MODES, "hold", _hold)
    client = feed.client()
    really = client.execute_command

    def execute_command(*args: Any, **options: Any) -> Any:
        for command in COMMANDS:
            if command in args:
                of_a_day = any("budget:day:" in str(one) for one in args)
                pass_point(f"{command}-day" if of_a_day else command)
        answer = really(*args, **options)
        if "acquire" in args and answer == 0:
            begun(str(args[args.index("acquire") + 1]))
        return answer

    monkeypatch.setattr(client, "execute_command", execute_command)
