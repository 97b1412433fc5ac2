"""Looks on while it runs: how many attempts work at once, and whose owner was struck."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections import Counter
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
    """High-water marks by scope, and the victims."""

    def __init__(self) -> None:
        self.most: Counter[str] = Counter()
        self.victims: list[Victim] = []
        self.ended = 0
        self.stored = 0

    def look(self, stop: threading.Event) -> None:
        """Sample until `stop`."""
        while not stop.wait(EVERY_SECONDS):
            try:
                self._sample()
            except DatabaseError as error:
                log.info("no sample: %s", error)
                connection.close()

    def _sample(self) -> None:
        now: Counter[str] = Counter()
        for project, agents in _rows(
            "SELECT p.slug, t.agents FROM loops_run r JOIN loops_task t ON t.id = r.task_id"
            " JOIN loops_project p ON p.id = t.project_id"
            " WHERE r.status = 'running' AND r.lease_expires_at > clock_timestamp()"
            # One that was claimed and finds no slot gives the run back before it acts.
            " AND EXISTS (SELECT 1 FROM loops_reservation v WHERE v.run_id = r.id"
            "   AND v.token = r.lease_token)"
        ):
            names = {f"profile:chaos-{name}" for name in _names(agents)}
            now.update({"pool", f"project:{project}", *names})
        for scope, count in now.items():
            self.most[scope] = max(self.most[scope], count)
        self.stored, self.ended = _rows(
            "SELECT count(*), count(*) FILTER (WHERE ended_at IS NOT NULL) FROM loops_run"
        )[0]

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


def _names(agents: Any) -> list[str]:
    return list((json.loads(agents) if isinstance(agents, str) else agents).values())


def _rows(sql: str, params: list[Any] | None = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())
