"""How pages show a run that waits for a check, and a pass that is no true green."""

from __future__ import annotations

from datetime import timedelta

from django.test import Client
from django.utils import timezone

from loops.core.lifecycle import RunStatus
from loops.models import AgentProfile, AttemptStatus, Project
from tests.dashboard.test_pages import MOST_QUERIES, queries, text_of
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


def test_a_run_whose_agent_rests_says_so_on_its_page_and_in_the_api(
    pages: Client, project: Project, bearer: dict[str, str]
) -> None:
    until = timezone.now() + timedelta(minutes=5)
    AgentProfile.objects.create(
        name="slow", provider="scripted", strikes=3, resting_until=until, last_overload="HTTP 529"
    )
    run = make_run(project, task={"agents": {"coder": "slow"}})
    wanted = f"It waits: the agent slow rests until {until:%H:%M:%S} UTC"
    assert wanted in text_of(pages.get(f"/tasks/{run.task_id}/").content.decode())
    answer = Client(**bearer).get(f"/api/v1/runs/{run.pk}").json()  # type: ignore[arg-type]
    assert answer["waits_for"].startswith(wanted)


def test_a_run_that_waits_for_a_slot_says_whose_and_stays_within_its_queries(
    pages: Client, project: Project
) -> None:
    AgentProfile.objects.create(name="one", provider="scripted", max_running=1)
    task = {"agents": {"coder": "one"}}
    make_run(project, task=task, admitted_at=timezone.now())
    run = make_run(project, task=task)
    address = f"/tasks/{run.task_id}/"
    read = text_of(pages.get(address).content.decode())
    assert "It waits for a free slot: the agent one has 1 of 1 in use." in read
    assert queries(pages, address) <= MOST_QUERIES
