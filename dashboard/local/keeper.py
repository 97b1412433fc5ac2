"""Keeps one thing alive: starts it again with a growing pause, and gives up when that is no use."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dashboard.local.errors import ChildFailed
from dashboard.local.logs import tail


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """A death within `settled_seconds` of the start is quick; pauses double up to the longest."""

    quick_restarts: int = 5
    settled_seconds: float = 30.0
    first_pause_seconds: float = 0.2
    longest_pause_seconds: float = 5.0

    def pause(self, deaths: int) -> float:
        """Seconds to wait after this many quick deaths in a row."""
        growing = self.first_pause_seconds * 2.0 ** (deaths - 1)
        return min(growing, self.longest_pause_seconds)


class Keeper:
    """One named thing with a way to start it and a way to see that it lives."""

    def __init__(
        self,
        name: str,
        log: Path,
        *,
        start: Callable[[], None],
        alive: Callable[[], bool],
        policy: RestartPolicy,
    ) -> None:
        self.name = name
        self.log = log
        self._start = start
        self._alive = alive
        self._policy = policy
        self._quick_deaths = 0
        self.started_at = 0.0
        self._due_at: float | None = None

    def start(self) -> None:
        self._start()
        self.started_at = time.monotonic()
        self._due_at = None

    def check(self, now: float) -> None:
        """Start it again when it is dead and its pause is over. Raises `ChildFailed`."""
        if self._alive():
            return
        if self._due_at is None:
            self._due_at = now + self._pause_after_death(now)
        if now >= self._due_at:
            self.start()

    def _pause_after_death(self, now: float) -> float:
        quick = now - self.started_at < self._policy.settled_seconds
        self._quick_deaths = self._quick_deaths + 1 if quick else 1
        if self._quick_deaths > self._policy.quick_restarts:
            raise ChildFailed(
                f"{self.name} died {self._quick_deaths} times in a row; everything is stopped."
                f" End of {self.log}:\n{tail(self.log)}"
            )
        return self._policy.pause(self._quick_deaths)
