"""The day of a project at the command line, on the page and in the API (RC077)."""

from __future__ import annotations

import html
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from loops.core.lifecycle import RunStatus
from loops.models import DayGrant, Escalation, Project, ProjectDay
from loops.store import days
from tests.dashboard.test_pages import MOST_QUERIES, queries, text_of
from tests.factories import make_run
from workers import day_gate


def _project(*words: str) -> str:
    out = StringIO()
    call_command("project", *words, stdout=out)
    return out.getvalue().strip()


def test_caps_zone_and_grants_are_set_from_the_command_line(project: Project) -> None:
    assert _project("list") == "payments  UTC  weight 1  today $0.00 of any, 0 of any tokens"
    zone = ["--time-zone", "Europe/Berlin"]
    said = _project("set", "payments", "--daily-cost", "20", "--daily-tokens", "5000", *zone)
    assert said == "payments  Europe/Berlin  weight 1  today $0.00 of $20.00, 0 of 5000 tokens"
    said = _project("grant", "payments", "--cost", "2.50")
    assert said == "payments  Europe/Berlin  weight 1  today $0.00 of $22.50, 0 of 5000 tokens"
    assert DayGrant.objects.get().cost_microusd == 2_500_000
    assert _project("set", "payments", "--daily-tokens", "none").endswith("0 of any tokens")
    assert _project("list").startswith("payments  Europe/Berlin  weight 1  today $0.00 of $22.50")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["set", "nobody", "--daily-cost", "1"],
            "no project 'nobody'; there are: payments",
        ),
        (["set", "payments"], "say what to set"),
        (["set", "payments", "--daily-cost", "0"], "--daily-cost: '0' is no positive amount"),
        (["set", "payments", "--daily-cost", "inf"], "--daily-cost: 'inf' is no positive amount"),
        (["set", "payments", "--daily-tokens", "1.5"], "--daily-tokens: '1.5' is no positive"),
        (["set", "payments", "--daily-tokens", "9" * 30], "--daily-tokens: '999"),
        (["set", "payments", "--time-zone", "Berlin"], "--time-zone: 'Berlin' is no IANA"),
        (["set", "payments", "--weight", "0"], "--weight: '0' is no positive whole number"),
        (["set", "payments", "--weight", "1001"], "--weight: '1001' is above 1000"),
        (["grant", "payments"], "say how much"),
        (["grant", "payments", "--cost", "-1"], "--cost: '-1' is no positive amount"),
    ],
)
def test_what_cannot_be_set_is_refused_by_name(
    project: Project, words: list[str], message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        _project(*words)
    project.refresh_from_db()
    facts = (project.daily_cost_microusd, project.time_zone, project.weight)
    assert facts == (None, "UTC", 1)


def test_the_weight_is_set_from_the_command_line(project: Project) -> None:
    assert "  weight 3  " in _project("set", "payments", "--weight", "3")
    project.refresh_from_db()
    assert project.weight == 3


def test_rc077_the_gate_shows_the_figures_and_a_person_grants_more(
    pages: Client, project: Project
) -> None:
    days.configure(project, daily_cost_microusd=1_000_000)
    ProjectDay.objects.update(used_cost_microusd=1_000_000)
    make_run(project, status=RunStatus.QUEUED)
    assert day_gate.run_pass() == 1
    item = Escalation.objects.get()
    address = f"/gate/{item.pk}/"
    page = text_of(pages.get(address).content.decode())
    assert "Day's budget used" in html.unescape(page)
    assert "used up: cost cap $1.00, used $1.00, reserved $0.00" in page
    assert "To approve adds $1.00 to its day, once" in page
    assert "Grant it for today" in page
    told = {"decision": "approve", "digest": item.digest}
    assert pages.post(address, told).status_code == 302
    assert pages.post(address, told).status_code == 409
    assert [grant.cost_microusd for grant in DayGrant.objects.all()] == [1_000_000]
    assert "Approve" in text_of(pages.get(address).content.decode())


def test_rc077_page_and_api_say_what_is_used_up_and_when_it_goes_on(
    pages: Client, bearer: dict[str, str], project: Project
) -> None:
    days.configure(project, daily_cost_microusd=1_000_000, time_zone="Europe/Berlin")
    run = make_run(project, status=RunStatus.QUEUED)
    head = Client().get(f"/api/v1/runs/{run.pk}", **bearer).json()  # type: ignore[arg-type]
    assert (head["waits_for_budget"], head["project_day"]["used_up"]) == (False, False)
    ProjectDay.objects.update(used_cost_microusd=1_000_000)
    page = text_of(pages.get(f"/tasks/{run.task_id}/").content.decode())
    assert "used up: cost cap $1.00, used $1.00, reserved $0.00. It goes on at" in page
    assert "00:00 Europe/Berlin, or when somebody grants more" in page
    assert "Project's cost today" in page
    assert "Waiting for budget" in text_of(pages.get("/tasks/").content.decode())
    shown = Client().get(f"/api/v1/runs/{run.pk}", **bearer).json()  # type: ignore[arg-type]
    assert (shown["status"], shown["waits_for_budget"]) == ("queued", True)
    found = shown["project_day"]
    assert (found["used_up"], found["time_zone"]) == (True, "Europe/Berlin")
    assert found["meters"][0]["used"] == {"amount": "1.000000", "currency": "USD"}
    assert found["why"].startswith("The project's day is used up: cost cap $1.00")
    # One more than elsewhere: the day.
    assert queries(pages, f"/tasks/{run.task_id}/") <= MOST_QUERIES + 1
