"""What the state machine looks at after each step: few statements, because it looks so often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.db import connection

from loops import feed, invariants
from loops.core.lifecycle import TERMINAL
from loops.statements import spelled
from loops.store.ledger import Scope
from workers import budgets

_EVERYTHING = {"after": 0, "upto": 2**31, "slots": 1_000, "waiting": 0, "sweeps": 0, "unclaimed": 0}
_RUNS = """
SELECT r.id, t.title, r.status, r.stop_reason, r.attempt_no, r.lease_token,
  r.admitted_at IS NOT NULL AND r.status = 'queued',
  r.status = 'running' AND NOT r.cancel_requested AND r.lease_expires_at > {now}
    AND r.attempt_deadline_at > {now} AND (r.deadline_at IS NULL OR r.deadline_at > {now}),
  r.status = 'queued' AND r.admitted_at IS NOT NULL AND NOT r.cancel_requested
    AND r.next_at <= {now} AND (r.deadline_at IS NULL OR r.deadline_at > {now})
    AND NOT EXISTS (SELECT 1 FROM loops_hold h WHERE h.target IN ('all', 'switch')
      OR h.target = 'run:' || r.id OR h.target = 'project:' || t.project_id),
  r.lease_expires_at IS NOT NULL AND r.lease_expires_at > {now}, {left:deadline_at},
  r.used_model_calls + r.reserved_model_calls,
  r.used_tokens + r.overrun_tokens + r.reserved_tokens,
  r.used_cost_microusd + r.overrun_cost_microusd + r.reserved_cost_microusd,
  r.used_tokens + COALESCE((SELECT SUM(v.est_tokens) FROM loops_reservation v
    WHERE v.run_id = r.id AND v.state = 'in_flight'), 0)
FROM loops_run r JOIN loops_task t ON t.id = r.task_id ORDER BY r.id
"""
_DAYS = """
SELECT d.id, d.used_tokens + COALESCE(SUM(CASE v.state WHEN 'in_flight' THEN v.est_tokens END), 0),
  d.used_tokens + d.overrun_tokens - COALESCE(SUM(CASE WHEN v.state IN ('settled', 'unknown')
    THEN COALESCE(v.actual_tokens, v.est_tokens) END), 0),
  d.reserved_tokens - COALESCE(SUM(CASE WHEN v.state IN ('reserved', 'in_flight')
    THEN v.est_tokens END), 0)
FROM loops_projectday d LEFT JOIN loops_reservation v ON v.day_id = d.id GROUP BY d.id
"""


@dataclass(frozen=True)
class Seen:
    """A run as it stands now."""

    id: int
    name: str
    status: str
    stop_reason: str
    no: int
    token: int
    admitted: bool
    """Waits with slots."""
    live: bool
    """Somebody works on it and may go on."""
    claimable: bool
    leased: bool
    """Its lease goes on, whatever else is to stop it."""
    seconds_left: float | None
    """Until its deadline."""
    model_calls: int
    tokens: int
    cost_microusd: int
    """What its ledger charges at most."""
    counted: int
    """Tokens that its counters must hold at least."""

    @property
    def at_rest(self) -> bool:
        """It has ended or waits for a person."""
        return self.status in TERMINAL or self.status == "at_gate"


@cache
def _spelled(sql: str, vendor: str) -> str:
    return spelled(sql, vendor)


@cache
def _always(vendor: str) -> str:
    """What holds at every moment, as one statement."""
    known = [s for s in invariants.statements(vendor) if s.of == "run" and not s.swept]
    parts = (f"SELECT {at}, x.* FROM ({one.sql}) AS x(id, found)" for at, one in enumerate(known))  # noqa: S608 - our own file
    if vendor == "sqlite":
        parts = (f"SELECT {at}, * FROM ({one.sql})" for at, one in enumerate(known))  # noqa: S608 - our own file
    return " UNION ALL ".join(parts)


def rows(sql: str, params: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """What a statement returns; `{now}` and its like are spelled for the database."""
    with connection.cursor() as cursor:
        cursor.execute(_spelled(sql, connection.vendor), params or {})
        return list(cursor.fetchall())


def runs() -> list[Seen]:
    """All runs."""
    return [Seen(*row) for row in rows(_RUNS)]


def broken_rows() -> Iterator[str]:
    """The product's own invariants that hold at every moment, on its runs."""
    known = [s for s in invariants.statements(connection.vendor) if s.of == "run" and not s.swept]
    for at, row_id, found in rows(_always(connection.vendor), _EVERYTHING):
        yield f"{known[at].code}: {known[at].rule} But run {row_id} {found}."


def broken_budgets(seen: list[Seen]) -> Iterator[str]:
    """Counters below what was sent, and days that are not the sum of their ledger."""
    days = rows(_DAYS)
    scopes = [(Scope("run", run.id), run.counted) for run in seen]
    scopes += [(Scope("day", pk), counted) for pk, counted, _, _ in days]
    with feed.client().pipeline(transaction=False) as pipe:
        for scope, _ in scopes:
            pipe.hget(budgets.key_of(scope), "tokens")
        for (scope, counted), found in zip(scopes, pipe.execute(), strict=True):
            if found is not None and int(found) < counted:
                yield f"the counters of {scope} have {int(found)} tokens, sent are {counted}"
    for pk, _, used, reserved in days:
        if used or reserved:
            yield f"day {pk} is {used} used and {reserved} reserved away from its ledger"
