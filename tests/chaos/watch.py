"""Looks on while it runs: how many runs have ended, and whose owner was struck."""

from __future__ import annotations

import logging
import socket
import threading
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import DatabaseError, connection

log = logging.getLogger(__name__)

EVERY_SECONDS = 0.2


@dataclass(frozen=True)
class Victim:
    """An attempt that was claimed when its owner was killed or frozen."""

    run: int
    token: int
    at: datetime


class Watch:
    """How far it is, and the victims."""

    def __init__(self) -> None:
        self.victims: list[Victim] = []
        self.ended = 0

    def look(self, stop: threading.Event) -> None:
        """Sample until `stop`."""
        while not stop.wait(EVERY_SECONDS):
            try:
                self._sample()
            except DatabaseError as error:
                log.info("no sample: %s", error)
                connection.close()

    def _sample(self) -> None:
        [(self.ended,)] = _rows("SELECT count(*) FROM loops_run WHERE ended_at IS NOT NULL")

    def held_by(self, pid: int | None) -> int:
        """How many attempts a worker has in hand."""
        return len(_held(pid))

    def note_victims(self, pid: int | None) -> None:
        """Its owner was struck just now."""
        self.victims += [Victim(*row) for row in _held(pid)]


def _held(pid: int | None) -> list[tuple[Any, ...]]:
    return _rows(
        "SELECT id, lease_token, clock_timestamp() FROM loops_run"
        " WHERE status = 'running' AND lease_owner = %s",
        [f"{socket.gethostname()}-{pid}"],
    )


def _rows(sql: str, params: list[Any] | None = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())
