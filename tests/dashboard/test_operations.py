"""Pause, resume, the switch and drain on pages, over HTTP and on the command line."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.test import Client

from loops.core.lifecycle import RunStatus
from loops.models import Hold, HoldRequest, Project, Run, WorkerPresence
from tests.dashboard.test_pages import text_of
from tests.factories import make_item, make_run

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(alice: User) -> User:
    """Alice may stop everything."""
    alice.is_superuser = True
    alice.save()
    return alice


def press(pages: Client, target: str, **facts: str) -> Any:
    """Press a button of a page."""
    return pages.post("/operations/hold/", {"target": target, **facts})


def held() -> list[str]:
    """What is held now."""
    return list(Hold.objects.order_by("target").values_list("target", flat=True))


def test_a_run_is_paused_and_resumed_on_its_page(pages: Client, project: Project) -> None:
    run = make_run(project, deadline_at=Now() + timedelta(hours=1))
    address = f"/tasks/{run.task_id}/"
    for _ in range(2):
        answer = press(pages, f"run:{run.pk}", why="look first", request_id="one")
        assert (answer.status_code, answer.url) == (302, address)
    assert run.events.filter(kind="paused").count() == 1
    page = pages.get(address).content.decode()
    assert "It is paused by alice: look first. Its deadline still runs." in text_of(page)
    assert "Resume run" in page
    assert "Paused" in text_of(pages.get("/tasks/").content.decode())
    press(pages, f"run:{run.pk}", do="lift", seen="somebody else's")
    assert held() == [f"run:{run.pk}"]
    press(pages, f"run:{run.pk}", do="lift", seen="page:one")
    assert held() == []
    assert "Pause run" in pages.get(address).content.decode()


def test_the_operations_page_says_who_stopped_what_and_why(
    pages: Client, project: Project, admin: User
) -> None:
    make_run(project)
    press(pages, f"project:{project.pk}", why="too dear")
    press(pages, "switch", why="wrong prices")
    read = text_of(pages.get("/operations/").content.decode())
    assert "alice stopped everything : wrong prices" in read.replace(" :", ":").replace(":", " :")
    assert "Everything is stopped by alice." in text_of(pages.get("/tasks/").content.decode())
    press(pages, "switch", do="lift")
    assert held() == [f"project:{project.pk}"]
    assert "Everything is stopped" not in pages.get("/tasks/").content.decode()
    assert HoldRequest.objects.count() == 3


def test_only_an_administrator_stops_everybody(pages: Client, bearer: dict[str, str]) -> None:
    for target in ("all", "switch"):
        assert press(pages, target).status_code == 403
    for name in ("pause", "resume", "stop", "release"):
        answer = pages.post(f"/api/v1/{name}", {}, content_type="application/json", **bearer)  # type: ignore[arg-type]
        assert answer.status_code == 403
    assert pages.post("/operations/drain/", {"worker": "w"}).status_code == 403
    assert press(pages, "run:none").status_code == 404
    assert held() == []


def test_the_api_pauses_once_for_a_key_and_resumes_what_was_seen(
    client: Client, project: Project, bearer: dict[str, str], admin: User
) -> None:
    run = make_run(project)
    other = make_run(Project.objects.create(slug="other", name="Other"))
    facts: Any = {"content_type": "application/json", **bearer}
    key = {"HTTP_IDEMPOTENCY_KEY": "k1"}
    for changed in (True, False):
        answer = client.post(f"/api/v1/runs/{run.pk}/pause", {"why": "wait"}, **facts, **key)
        assert (answer.status_code, answer.json()["changed"]) == (200, changed)
    shown = client.get(f"/api/v1/runs/{run.pk}", **bearer).json()  # type: ignore[arg-type]
    assert shown["waits_for"] == "It is paused by alice: wait."
    found = shown["held"]
    assert [(one["target"], one["actor"], one["why"]) for one in found] == [
        (f"run:{run.pk}", "alice", "wait")
    ]
    reused = client.post(f"/api/v1/runs/{run.pk}/resume", {}, **facts, **key)
    assert (reused.status_code, reused.json()["code"]) == (422, "idempotency_key_reused")
    late = client.post(f"/api/v1/runs/{run.pk}/resume", {"seen": "older"}, **facts)
    assert (late.json()["changed"], late.json()["held"]["id"]) == (False, found[0]["id"])
    done = client.post(f"/api/v1/runs/{run.pk}/resume", {"seen": found[0]["id"]}, **facts)
    assert done.json() == {"target": f"run:{run.pk}", "changed": True, "held": None}
    assert client.post(f"/api/v1/runs/{other.pk}/pause", {}, **facts).status_code == 404
    for name in ("project/pause", "pause", "stop"):
        assert client.post(f"/api/v1/{name}", {}, **facts).json()["changed"]
    listed = client.get("/api/v1/holds", **bearer).json()["data"]  # type: ignore[arg-type]
    assert [one["target"] for one in listed] == ["all", f"project:{project.pk}", "switch"]
    tasks = client.get("/api/v1/tasks", **bearer).json()["data"]  # type: ignore[arg-type]
    assert len(tasks[0]["run"]["held"]) == 3
    ended = make_run(project, status=RunStatus.SUCCEEDED)
    assert client.post(f"/api/v1/runs/{ended.pk}/pause", {}, **facts).status_code == 409


def test_the_command_line_does_the_same(project: Project) -> None:
    run = make_run(project)
    said = io.StringIO()
    for name, *options in (
        ("pause", "--run", str(run.pk), "--why", "look"),
        ("pause", "--task", run.task.key),
        ("pause", "--project", project.slug, "--request-id", "r1"),
        ("pause", "--all"),
        ("stop-all", "--why", "fire"),
    ):
        call_command(name, *options, stdout=said)
    assert held() == ["all", f"project:{project.pk}", f"run:{run.pk}", "switch"]
    assert Hold.objects.get(pk="switch").why == "fire"
    for options in (["--switch"], ["--all"], ["--project", project.slug], ["--run", str(run.pk)]):
        call_command("resume", *options, stdout=said)
    assert held() == []
    with pytest.raises(CommandError, match="--project: there is no x; there are: payments"):
        call_command("pause", "--project", "x")
    with pytest.raises(CommandError, match="--task: there is no run T-9999"):
        call_command("pause", "--task", "T-9999")
    with pytest.raises(CommandError, match="stands for hold project"):
        call_command("resume", "--all", "--request-id", "r1")


def test_a_worker_is_drained_on_the_page(pages: Client, admin: User) -> None:
    WorkerPresence.objects.create(name="w-1", kind="worker", started_at=Now(), seen_at=Now())
    pages.post("/operations/drain/", {"worker": "w-1", "do": "hold"})
    assert "Drained" in text_of(pages.get("/operations/").content.decode())
    pages.post("/operations/drain/", {"worker": "w-1", "do": "lift"})
    assert "Takes attempts" in text_of(pages.get("/operations/").content.decode())


def test_a_passed_deadline_shows_in_every_list_and_filter_before_any_sweep(
    pages: Client, project: Project, bearer: dict[str, str]
) -> None:
    runs = [
        make_run(project, status=status, title=f"a {status} one")
        for status in (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.AT_GATE)
    ]
    item = make_item(runs[2])
    Run.objects.update(deadline_at=Now())
    for show, count in (("gate", 0), ("running", 0), ("ended", 3), ("all", 3)):
        page = pages.get(f"/tasks/?show={show}").content.decode()
        assert page.count('<tr id="t-') == count, show
    assert "Limit reached" in text_of(page)
    for status, number in (("queued", 0), ("running", 0), ("at_gate", 0), ("budget_exhausted", 3)):
        found = pages.get(f"/api/v1/tasks?status={status}", **bearer).json()["data"]  # type: ignore[arg-type]
        assert len(found) == number, status
    for status, number in (("open", 0), ("expired", 1)):
        listed = pages.get(f"/api/v1/escalations?status={status}", **bearer)  # type: ignore[arg-type]
        assert len(listed.json()["data"]) == number
    shown = pages.get(f"/gate/{item.pk}/").content.decode()
    assert 'name="decision"' not in shown
    for run in runs:
        page = pages.get(f"/tasks/{run.task_id}/").content.decode()
        assert "Limit reached" in page
        assert "Cancel run" not in page
        assert "Pause run" not in page
