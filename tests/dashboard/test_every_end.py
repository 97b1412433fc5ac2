"""Every run that has ended says why, with counters, limits and what remains (RC061)."""

from __future__ import annotations

import pytest
from django.test import Client

from loops.core.lifecycle import RunStatus
from loops.models import Project
from tests.dashboard.test_pages import text_of
from tests.factories import make_run


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("iterations", "check_fix exceeded MAX_CHECK_FIX_ITERATIONS"),
        ("same_failure", "The same failure comes back after each attempt. Seen 3 times in a row."),
        ("polls", "Not ready after 20 looks: check 1 (ci)."),
    ],
)
def test_rc061_page_and_api_say_the_same(
    pages: Client, bearer: dict[str, str], project: Project, cause: str, reason: str
) -> None:
    run = make_run(
        project,
        status=RunStatus.BUDGET_EXHAUSTED,
        stop_reason=cause,
        reason=reason,
        iterations=3,
        limit_iterations=5,
        result={"limit": cause, "remains": "check 1: ci exited with 1"},
    )
    read = text_of(pages.get(f"/tasks/{run.task_id}/").content.decode())
    told = pages.get(f"/api/v1/runs/{run.pk}", **bearer).json()
    assert (told["stop_reason"], told["reason"]) == (cause, reason)
    assert told["result"]["remains"] == "check 1: ci exited with 1"
    assert reason in read
    assert "check 1: ci exited with 1" in read
    assert "3 of 5" in read
