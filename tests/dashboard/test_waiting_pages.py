"""How pages show a run that waits for a check, and a pass that is no true green."""

from __future__ import annotations

from django.test import Client

from loops.core.lifecycle import RunStatus
from loops.models import AttemptStatus, Project
from tests.dashboard.test_pages import text_of
from tests.factories import add_attempt, make_run


def test_s3_10_d4_a_quota_skip_is_shown_differently_from_green(
    pages: Client, project: Project
) -> None:
    run = make_run(
        project,
        status=RunStatus.SUCCEEDED,
        stop_reason="quota_skipped",
        result={"passed_quota_skipped": True},
    )
    add_attempt(run, 1, "quota skipped", judgment="success")
    page = pages.get(f"/tasks/{run.task_id}/").content.decode()
    read = text_of(page)
    assert "Passed, quota skipped" in read
    assert "this is no true green" in read
    assert 'pill is-changes"><span>Passed, quota skipped' in page
    assert 'pill is-changes"><span>quota skipped' in page


def test_a_run_that_waits_says_for_what(pages: Client, project: Project) -> None:
    reason = "Not ready yet: check 1 (ci). It looks again in 30 s."
    run = make_run(project, status=RunStatus.QUEUED, reason=reason)
    add_attempt(run, 1, "not ready", status=AttemptStatus.WAITED, counted=False)
    read = text_of(pages.get(f"/tasks/{run.task_id}/").content.decode())
    assert reason in read
    assert "waited" in read
