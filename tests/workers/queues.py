"""Long queues as bare rows, and what a worker does to one of their runs."""

from __future__ import annotations

from django.db import connection

from loops.core.lifecycle import RunStatus, StopReason
from loops.models import AgentProfile, Run
from loops.store import attempts
from tests.engine import rows
from workers import slots

_COPIES = """
WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < %s)
INSERT INTO loops_run ({into}) SELECT {values} FROM loops_run, n
WHERE loops_run.id = %s AND n.i <= %s
"""


def many(slug: str, count: int, *, agents: dict[str, str] | None = None, priority: int = 0) -> Run:
    """So many queued runs of one task at once; the first of them."""
    first = rows.queued(slug, agents=agents, priority=priority)
    columns = [field.column for field in Run._meta.concrete_fields if not field.primary_key]
    into = ", ".join(connection.ops.quote_name(column) for column in columns)
    values = into.replace(connection.ops.quote_name("number"), "n.i")
    with connection.cursor() as cursor:
        cursor.execute(_COPIES.format(into=into, values=values), [count, first.pk, count])
    return first


def finish(run: Run, *, attempts_each: int = 1) -> None:
    """A worker does an attempt, of so many, from the claim to its freed slots."""
    profiles = {profile.name: profile for profile in AgentProfile.objects.all()}
    claim = rows.take(run)
    scopes = slots.scopes_of(Run.objects.select_related("task__project").get(pk=run.pk), profiles)
    assert slots.begin(claim, scopes) is None
    end = rows.ending(RunStatus.SUCCEEDED, stop_reason=StopReason.ACCEPTED)
    goes_on = run.attempt_no < attempts_each
    assert attempts.finish(claim, rows.ending() if goes_on else end)
    slots.release(slots.holder(run.pk, claim.token), scopes)
