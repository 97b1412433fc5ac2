"""The list, the page of a task, and what every page carries."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from loops import clock
from loops.core.lifecycle import RunStatus
from loops.models import AttemptStatus, Project, Run, StepKind, StepStatus, WorkerPresence
from loops.store import artifacts, events
from tests.factories import PATCH, add_attempt, add_step, make_item, make_run

MOST_QUERIES = 12


def text_of(html: str) -> str:
    """What a person reads."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html)))


def queries(client: Client, address: str) -> int:
    """How many queries one answer takes."""
    clock.now()  # once a minute for the whole process
    with CaptureQueriesContext(connection) as captured:
        assert client.get(address).status_code == 200
    return len(captured)


def full_run(project: Project, alice: User, status: RunStatus, attempts: int = 3) -> Run:
    """A run with attempts, checks, talk and events."""
    run = make_run(project, user=alice, status=status, iterations=min(attempts, 6))
    for no in range(1, attempts + 1):
        add_attempt(run, no)
        add_step(run, no, 3, StepKind.MODEL_CALL, "reviewer", "claude", prompt="Review this.")
    for no in range(30):
        events.record(run.pk, "note", f"event {no}")
    if status == RunStatus.AT_GATE:
        make_item(run)
    return run


def test_a_page_for_members_sends_strangers_to_the_login(client: Client, db: None) -> None:
    for address in ("/tasks/", "/tasks/1/", "/gate/", "/gate/1/", "/tasks/new/", "/account/"):
        response = client.get(address)
        assert response.status_code == 302, address
        assert response["Location"].startswith("/login/")


def test_the_first_page_shows_three_real_commands(pages: Client) -> None:
    html = pages.get("/tasks/").content.decode()
    for command in ("make demo", "manage.py submit check_fix", "/api/v1/tasks"):
        assert command in html


def test_no_match_says_what_was_asked_and_offers_to_clear(pages: Client, project: Project) -> None:
    make_run(project)
    read = text_of(pages.get("/tasks/?q=<nothing>&show=ended").content.decode())
    assert "No task matches “ <nothing> ” among “Ended”" in read
    assert "Clear filters" in read


def test_chips_count_what_they_show(pages: Client, project: Project) -> None:
    make_run(project, status=RunStatus.QUEUED, title="one")
    make_run(project, status=RunStatus.RUNNING, title="two")
    make_run(project, status=RunStatus.AT_GATE, title="three")
    make_run(project, status=RunStatus.SUCCEEDED, title="four")
    read = text_of(pages.get("/tasks/").content.decode())
    assert "All 4 Needs you 1 Running 2 Ended 1" in read
    ended = text_of(pages.get("/tasks/?show=ended").content.decode())
    assert "four" in ended
    assert "three" not in ended


@pytest.mark.parametrize("words", ["refund", "T-{pk}", "t-{pk}", "{pk}"])
def test_search_finds_title_and_key(pages: Client, project: Project, words: str) -> None:
    wanted = make_run(project, title="Handle refund webhooks").task
    make_run(project, title="Something else")
    read = text_of(pages.get("/tasks/", {"q": words.format(pk=wanted.pk)}).content.decode())
    assert "Handle refund webhooks" in read
    assert "Something else" not in read


def test_paging_goes_by_id_and_misses_nothing(pages: Client, project: Project) -> None:
    titles = [f"task number {no:03}" for no in range(120)]
    for title in titles:
        make_run(project, title=title)
    seen: list[str] = []
    address = "/tasks/?q=task"
    while address:
        html = pages.get(address).content.decode()
        seen += re.findall(r"task number \d{3}", html)
        older = re.search(r'rel="next" href="([^"]+)"', html)
        address = "/tasks/" + unescape(older[1]) if older else ""
    assert seen == titles[::-1]


def test_a_refresh_moves_no_row_and_says_how_many_are_new(pages: Client, project: Project) -> None:
    make_run(project, title="seen")
    html = pages.get("/tasks/").content.decode()
    refresh = unescape(re.search(r'id="task-list"[^>]*hx-get="([^"]+)"', html)[1])  # type: ignore[index]
    make_run(project, title="came later")
    part = pages.get(refresh, HTTP_HX_REQUEST="true").content.decode()
    assert "<html" not in part
    assert "came later" not in part
    assert "1 new task, show" in part


@pytest.mark.parametrize("address", ["/tasks/", "/tasks/?q=green", "/gate/"])
def test_lists_take_few_queries_however_long(
    pages: Client, project: Project, alice: User, address: str
) -> None:
    def grow(count: int) -> None:
        for _ in range(count):
            full_run(project, alice, RunStatus.AT_GATE)

    grow(2)
    few = queries(pages, address)
    grow(15)
    assert queries(pages, address) == few <= MOST_QUERIES


@pytest.mark.parametrize("tab", ["timeline", "diff", "checks", "transcript", "events"])
def test_the_task_page_takes_few_queries_however_long(
    pages: Client, project: Project, alice: User, tab: str
) -> None:
    short = full_run(project, alice, RunStatus.AT_GATE, attempts=2)
    long = full_run(project, alice, RunStatus.AT_GATE, attempts=60)
    few = queries(pages, f"/tasks/{short.task_id}/?tab={tab}")
    assert queries(pages, f"/tasks/{long.task_id}/?tab={tab}") == few <= MOST_QUERIES


def test_the_task_page_tells_the_story(pages: Client, project: Project, alice: User) -> None:
    run = full_run(project, alice, RunStatus.RUNNING)
    Run.objects.filter(pk=run.pk).update(
        limit_cost_microusd=2_500_000, used_cost_microusd=1_940_000, reserved_cost_microusd=210_000
    )
    add_attempt(run, 4, label="", status=AttemptStatus.RUNNING, judgment="")
    add_step(
        run,
        4,
        3,
        StepKind.MODEL_CALL,
        "reviewer",
        "claude",
        status=StepStatus.RUNNING,
        ended_at=None,
    )
    read = text_of(pages.get(f"/tasks/{run.task_id}/").content.decode())
    for words in (
        "iteration 4 of 6, then the gate",
        "$1.94 / $2.50",
        "$0.21 reserved",
        "checks failed",
        "test exit 1",
        "reviewer asking",
        "Cancel run",
        "ruff check .",
        "human gate",
    ):
        assert words in read, words


def test_the_meter_draws_in_attributes_not_in_styles(pages: Client, project: Project) -> None:
    run = make_run(
        project, limit_tokens=1000, used_tokens=780, reserved_tokens=90, status=RunStatus.QUEUED
    )
    html = pages.get(f"/tasks/{run.task_id}/").content.decode()
    assert 'class="spent" width="78%"' in html
    assert 'x1="78%" x2="87%"' in html
    assert 'class="meter warm"' in html


def test_a_limit_of_a_million_draws_a_short_rail(pages: Client, project: Project) -> None:
    run = make_run(project, limit_iterations=1_000_000, iterations=3)
    html = pages.get(f"/tasks/{run.task_id}/").content.decode()
    assert html.count("<i") < 60
    assert 'aria-label="3 of 1000000 iterations"' in html


def test_a_passed_deadline_shows_at_once(pages: Client, project: Project) -> None:
    run = make_run(project, deadline_at=timezone.now() - timedelta(seconds=1))
    read = text_of(pages.get(f"/tasks/{run.task_id}/").content.decode())
    assert "Limit reached" in read
    assert "The deadline has passed." in read


def test_text_is_shown_as_typed_with_hidden_characters_visible(
    pages: Client, project: Project
) -> None:
    """RC182, and the whole kind: every bidi control and zero-width character."""
    title = "Проверка 京都 🧪 \u202e x"
    run = make_run(project, title=title)
    for address in ("/tasks/", f"/tasks/{run.task_id}/"):
        html = pages.get(address).content.decode()
        assert "Проверка 京都 🧪" in html
        assert "\u202e" not in html
        assert ">U+202E</span>" in html
    assert "\u202e" not in pages.get("/tasks/", {"q": "a\u202eb"}).content.decode().split("<h2")[1]


def test_markup_in_user_text_stays_text(pages: Client, project: Project, alice: User) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    run = make_run(project, title=evil, status=RunStatus.AT_GATE, reason=evil)
    add_attempt(run, 1, feedback=evil, label=evil[:40], error=evil)
    item = make_item(run, reason=evil, packet={"why": evil, "code": evil, "reasons": [evil]})
    for address in ("/tasks/", f"/tasks/{run.task_id}/", f"/gate/{item.pk}/"):
        html = pages.get(address).content.decode()
        assert "<script>alert" not in html
        assert "<img" not in html


def test_the_result_says_how_to_take_it(pages: Client, project: Project) -> None:
    patch = artifacts.put(PATCH)
    run = make_run(project, status=RunStatus.SUCCEEDED)
    run.result = {
        "patch": patch,
        "branch": "loopwarden/T-1",
        "take": ["git fetch /data/T-1 loopwarden/T-1"],
        "files": [
            {"path": "src/core/subscriptions.py", "added": 3, "removed": 1, "kind": "modified"}
        ],
        "last_fix_unverified": True,
    }
    run.save()
    read = text_of(pages.get(f"/tasks/{run.task_id}/?tab=diff").content.decode())
    assert "git fetch /data/T-1 loopwarden/T-1" in read
    assert "The last fix was not checked any more." in read
    assert "self._bus.unsubscribe(token)" in read
    assert "tests/test_subscriptions.py new +3 −0" in read


def test_an_artifact_downloads_as_a_file_and_only_to_its_task(
    pages: Client, project: Project
) -> None:
    run, other = make_run(project), make_run(project)
    step = add_step(run, 1, 1, StepKind.CHECK, "test", "pytest", output="<b>hello</b>")
    response = pages.get(f"/tasks/{run.task_id}/artifacts/{step.output}/")
    assert response.content == b"<b>hello</b>"
    assert response["Content-Disposition"].startswith("attachment")
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Type"] == "application/octet-stream"
    assert pages.get(f"/tasks/{other.task_id}/artifacts/{step.output}/").status_code == 404
    assert pages.get(f"/tasks/{run.task_id}/artifacts/..%2f..%2fsecret-key/").status_code == 404


def test_cancel_is_a_post_and_twice_is_no_error(pages: Client, project: Project) -> None:
    run = make_run(project)
    address = f"/tasks/{run.task_id}/cancel/"
    assert pages.get(address).status_code == 405
    assert pages.post(address).status_code == 302
    read = text_of(pages.post(address, follow=True).content.decode())
    assert "The run has ended already" in read
    run.refresh_from_db()
    assert run.status == RunStatus.CANCELLED


def test_the_foot_counts_workers_that_live(pages: Client, project: Project) -> None:
    now = timezone.now()
    make_run(project)
    assert "no worker, 1 queued" in pages.get("/tasks/").content.decode()
    for name, seen in (("a", 1), ("b", 29), ("gone", 31)):
        seen_at = now - timedelta(seconds=seen)
        WorkerPresence.objects.create(name=name, kind="worker", started_at=now, seen_at=seen_at)
    assert "2 workers, 1 queued" in pages.get("/tasks/").content.decode()


def test_a_worker_without_a_sandbox_is_named_on_the_page(pages: Client, project: Project) -> None:
    run, now = make_run(project), timezone.now()
    label = "no sandbox: commands run as the worker's user"
    WorkerPresence.objects.create(
        name="a", kind="worker", started_at=now, seen_at=now, sandbox=label
    )
    read = text_of(pages.get(f"/tasks/{run.task_id}/").content.decode())
    assert f"Commands are not isolated here: {label}" in read
    WorkerPresence.objects.update(sandbox="bubblewrap sandbox")
    assert "not isolated" not in pages.get(f"/tasks/{run.task_id}/").content.decode()


def test_error_pages_are_plain_and_carry_the_request_id(pages: Client) -> None:
    response = pages.get("/nowhere/", HTTP_X_REQUEST_ID="abc-1")
    assert response.status_code == 404
    assert response["X-Request-Id"] == "abc-1"
    assert "There is nothing here" in response.content.decode()
    assert "abc-1" in response.content.decode()
    strict = Client(enforce_csrf_checks=True)
    assert "That is not allowed" in strict.post("/login/").content.decode()


def test_a_bug_answers_500_without_its_insides(
    pages: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("dashboard.views.tasks.search", broken)
    pages.raise_request_exception = False
    response = pages.get("/tasks/")
    assert response.status_code == 500
    assert "Something broke here" in response.content.decode()
    assert "secret detail" not in response.content.decode()


@pytest.mark.parametrize(
    "address", ["/login/", "/tasks/", "/gate/", "/tasks/new/", "/nowhere/", "/healthz", "/api/v1/x"]
)
def test_every_answer_has_the_strict_policy(pages: Client, address: str) -> None:
    policy = pages.get(address)["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
