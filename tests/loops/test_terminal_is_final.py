"""The database itself refuses to give what has ended another status, whoever asks."""

from __future__ import annotations

import itertools

import pytest
from django.db import IntegrityError, connection, transaction

from loops.core.lifecycle import TERMINAL, RunStatus, StopReason
from loops.models import Graph, GraphStatus, Run
from tests.engine import rows, scenes

pytestmark = pytest.mark.django_db


_SET = {
    "loops_run": "UPDATE loops_run SET status = %s, stop_reason = 'errors',"
    " lease_expires_at = NULL WHERE id = %s",
    "loops_graph": "UPDATE loops_graph SET status = %s, outcome = '' WHERE id = %s",
}


def _set_status(table: str, row_id: int, status: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_SET[table], [status, row_id])


def _at(status: RunStatus) -> Run:
    return rows.queued(status=status, stop_reason=StopReason.ACCEPTED)


@pytest.mark.parametrize(
    ("old", "new"), itertools.product(sorted(TERMINAL), RunStatus), ids=lambda status: status.value
)
def test_a_run_that_has_ended_keeps_its_status(old: RunStatus, new: RunStatus) -> None:
    run = _at(old)
    if new is old:
        _set_status("loops_run", run.pk, new)
    else:
        # A table that a migration rebuilt has lost its trigger: see `loops/triggers.py`.
        with pytest.raises(IntegrityError, match="what has ended keeps its status"):
            _set_status("loops_run", run.pk, new)
    run.refresh_from_db()
    assert run.status == old


@pytest.mark.parametrize("old", sorted(set(RunStatus) - TERMINAL))
def test_a_run_that_has_not_ended_may_move(old: RunStatus) -> None:
    run = rows.claimed()[0] if old is RunStatus.RUNNING else _at(old)
    _set_status("loops_run", run.pk, RunStatus.FAILED)
    run.refresh_from_db()
    assert run.status == RunStatus.FAILED


def test_an_ended_run_may_still_be_corrected() -> None:
    run = rows.change(_at(RunStatus.SUCCEEDED), overrun_cost_microusd=5)
    assert run.overrun_cost_microusd == 5


def test_a_graph_that_has_ended_keeps_its_status() -> None:
    graph = Graph.objects.create(
        project=scenes.project(), title="g", aim="a", mode="serial",
        status=GraphStatus.ENDED, outcome="success",
    )  # fmt: skip
    for status in (GraphStatus.RUNNING, GraphStatus.AT_GATE):
        with pytest.raises(IntegrityError, match="what has ended keeps its status"):
            _set_status("loops_graph", graph.pk, status)
