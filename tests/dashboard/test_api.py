"""REST: the same figures as the page, problem documents for every error, one task per key."""

from __future__ import annotations

import json
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from dashboard import tokens
from loops import figures
from loops.core.lifecycle import RunStatus
from loops.models import AgentProfile, Escalation, Project, Run, Task
from loops.store import events
from tests.factories import add_attempt, make_item, make_run

BODY: dict[str, Any] = {
    "pattern": "coder_reviewer",
    "title": "Write slugify()",
    "spec": {"task": "Write slugify(title)."},
    "limits": {"iterations": 3, "cost": {"amount": "2.50", "currency": "USD"}},
    "agents": {"coder": "scripted-coder", "reviewer": "scripted-coder"},
}


@pytest.fixture
def api(bearer: dict[str, str]) -> Client:
    """A program with Alice's token."""
    return Client(**bearer)  # type: ignore[arg-type]


def post(client: Client, path: str, body: Any, **headers: str) -> Any:
    """Send JSON."""
    data = body if isinstance(body, (str, bytes)) else json.dumps(body)
    return client.post(f"/api/v1{path}", data, content_type="application/json", headers=headers)


def problem(response: Any, status: int, code: str) -> Any:
    """The problem document, with everything that each must have."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert body["code"] == code
    assert body["request_id"] == response["X-Request-Id"]
    assert body["title"]
    return body


def test_a_submitted_task_is_accepted_with_its_run(
    api: Client, profiles: list[AgentProfile]
) -> None:
    response = post(api, "/tasks", BODY)
    assert response.status_code == 202
    body = response.json()
    assert response["Location"] == f"/api/v1/tasks/{body['id']}"
    assert body["run"]["status"] == "queued"
    assert body["limits"]["cost"] == {"amount": "2.500000", "currency": "USD"}
    assert body.pop("notes") == []
    assert api.get(response["Location"]).json() == body
    assert api.get(f"/api/v1/tasks/{body['key']}").json() == body
    assert body["created_at"].endswith("Z")


def test_any_text_comes_back_as_it_was_sent(api: Client, profiles: list[AgentProfile]) -> None:
    """RC182."""
    title = "Проверка 京都 🧪 \u202e x"
    response = post(api, "/tasks", {**BODY, "title": title})
    assert response.json()["title"] == title
    assert title.encode() in response.content


def test_a_run_has_the_figures_of_its_page(api: Client, project: Project) -> None:
    run = make_run(
        project,
        status=RunStatus.AT_GATE,
        iterations=2,
        used_cost_microusd=1_234_567,
        reserved_cost_microusd=5,
        limit_cost_microusd=2_000_000,
        used_tokens=900,
    )
    add_attempt(run, 1)
    add_attempt(run, 2, "changes requested")
    body = api.get(f"/api/v1/runs/{run.pk}").json()
    run.refresh_from_db()
    assert body["iterations"] == {"used": 2, "allowed": 6}
    assert body["outcome"] == figures.outcome_words(run)
    cost, tokens_used = body["meters"][1], body["meters"][0]
    assert cost["used"] == {"amount": "1.234567", "currency": "USD"}
    assert Decimal(cost["reserved"]["amount"]) == Decimal("0.000005")
    assert tokens_used == {"axis": "tokens", "used": 900, "reserved": 0, "cap": None}
    assert [attempt["no"] for attempt in body["attempts"]] == [1, 2]
    assert [step["exit_code"] for step in body["attempts"][0]["steps"]] == [0, 1]


def test_events_are_read_on_from_any_number(api: Client, project: Project) -> None:
    run = make_run(project)
    for no in range(5):
        events.record(run.pk, "note", f"event {no}")
    first = api.get(f"/api/v1/runs/{run.pk}/events?limit=4").json()
    assert [event["seq"] for event in first["data"]] == [1, 2, 3, 4]
    assert (first["has_more"], first["next_after"]) == (True, 4)
    rest = api.get(f"/api/v1/runs/{run.pk}/events?after=4").json()
    assert [event["seq"] for event in rest["data"]] == [5, 6]
    assert not rest["has_more"]
    empty = api.get(f"/api/v1/runs/{run.pk}/events?after=6").json()
    assert (empty["data"], empty["next_after"]) == ([], 6)


def test_tasks_are_listed_page_by_page_and_filtered(api: Client, project: Project) -> None:
    for no in range(5):
        make_run(project, title=f"task {no}")
    make_run(project, title="done", status=RunStatus.SUCCEEDED)
    seen, address = [], "/api/v1/tasks?limit=2&status=queued"
    while address:
        response = api.get(address)
        seen += [task["title"] for task in response.json()["data"]]
        link = response.get("Link", "")
        address = link.partition(">")[0].lstrip("<")
    assert seen == [f"task {no}" for no in (4, 3, 2, 1, 0)]
    both = api.get("/api/v1/tasks?status=queued&status=succeeded").json()
    assert len(both["data"]) == 6
    assert [t["title"] for t in api.get("/api/v1/tasks?q=done").json()["data"]] == ["done"]
    assert api.get("/api/v1/tasks?pattern=one_pass").json()["data"] == []


@pytest.mark.parametrize("query", ["status=asleep", "pattern=nope", "limit=1000", "cursor=-1"])
def test_a_wrong_parameter_is_named(api: Client, query: str) -> None:
    body = problem(api.get(f"/api/v1/tasks?{query}"), 400, "invalid")
    assert body["errors"][0]["parameter"] == query.partition("=")[0]


def test_cancel_is_accepted_and_twice_is_no_error(api: Client, project: Project) -> None:
    run = make_run(project)
    for _ in range(2):
        response = post(api, f"/runs/{run.pk}/cancel", {})
        assert response.status_code == 202
        assert response.json()["status"] == "cancelled"


def test_what_to_know_of_a_task_is_said_when_it_is_taken(
    api: Client, profiles: list[AgentProfile]
) -> None:
    same = {**BODY, "agents": dict.fromkeys(("coder", "reviewer"), "local-model")}
    made = post(api, "/tasks", {**same, "limits": {"iterations": 3}}).json()
    assert made["notes"] == ["coder and reviewer are the same model: they share blind spots"]
    assert post(api, "/tasks", BODY).json()["notes"] == []


def test_a_relative_repository_is_refused(
    api: Client, pages: Client, project: Project, profiles: list[AgentProfile]
) -> None:
    asked = {
        "pattern": "one_pass",
        "title": "x",
        "spec": {"command": "true"},
        "limits": {"iterations": 1},
    }
    for repo in ("../app", ".", "~", "app"):
        body = {**asked, "source": {"repo": repo}}
        (error,) = problem(post(api, "/tasks", body), 400, "refused")["errors"]
        assert error["pointer"] == "/source/repo"
        assert error["detail"] == f"{repo} is no whole path: give it from the root on, /..."
        typed = {"title": "x", "spec.command": "true", "limits.iterations": "1", "on_limit": "stop"}
        page = pages.post("/tasks/new/one_pass/", {**typed, "source.repo": repo})
        assert page.status_code == 400
        assert "is no whole path" in page.content.decode()


def test_all_problems_of_a_task_come_at_once_with_pointers(api: Client) -> None:
    body = {**BODY, "title": "", "spec": {"taks": "x"}, "limits": {"iterations": 0}}
    found = problem(post(api, "/tasks", body), 400, "refused")["errors"]
    by_pointer = {error["pointer"]: error["detail"] for error in found}
    assert by_pointer["/spec/taks"] == "there is no such field; did you mean task?"
    assert {"/title", "/spec/task", "/limits/iterations", "/agents/coder"} <= set(by_pointer)
    assert not Task.objects.exists()


@pytest.mark.parametrize(
    ("change", "pointer", "detail"),
    [
        ({"titel": "x"}, "/titel", "there is no such field; did you mean title?"),
        ({"limits": {"iteration": 1}}, "/limits/iteration", "did you mean iterations?"),
        ({"source": {"repo": "/x", "dirty": True}}, "/source/dirty", "there are: include_dirty"),
        ({"priority": "high"}, "/priority", "valid integer"),
        ({"priority": True}, "/priority", "valid integer"),
        ({"limits": {"iterations": 10**30}}, "/limits/iterations", "1000000000"),
        ({"limits": {"cost": {"amount": "1e3", "currency": "USD"}}}, "/limits/cost/amount", ""),
        ({"limits": {"cost": {"amount": "1", "currency": "EUR"}}}, "/limits/cost/currency", "USD"),
        ({"a/b": 1}, "/a~1b", "there is no such field"),
    ],
)
def test_a_wrong_field_is_named(
    api: Client,
    profiles: list[AgentProfile],
    change: dict[str, Any],
    pointer: str,
    detail: str,
) -> None:
    found = problem(post(api, "/tasks", {**BODY, **change}), 400, "invalid")["errors"]
    assert found[0]["pointer"] == pointer
    assert detail in found[0]["detail"]


def test_a_missing_field_is_named(api: Client) -> None:
    found = problem(post(api, "/tasks", {"title": "x"}), 400, "refused")["errors"]
    assert [error["pointer"] for error in found] == ["/pattern", "/limits/iterations"]
    assert found[0]["detail"].startswith("is missing; there are: check_fix, coder_reviewer, ")


PROBLEMS_BESIDE_EACH_OTHER: list[tuple[dict[str, Any], list[str]]] = [
    (
        {
            "spec": {"task": "", "zzz": 1},
            "limits": {"iterations": 0, "cost": {"amount": "1", "currency": "EUR"}},
            "agents": {"coder": "nope"},
        },
        [
            "/limits/cost/currency",
            "/spec/task",
            "/spec/zzz",
            "/limits/iterations",
            "/agents/coder",
            "/agents/reviewer",
        ],
    ),
    (
        {"title": "a\0b", "spec": {"task": 5}, "agents": {"coder": 5}, "source": []},
        ["/title", "/agents/coder", "/source", "/spec/task", "/agents/reviewer"],
    ),
    (
        {"pattern": 5, "agents": {"coder": "nope\0"}, "on_limit": "ask", "limits": []},
        ["/agents/coder", "/pattern", "/limits", "/on_limit"],
    ),
    ({"spec": "x", "agents": []}, ["/spec", "/agents"]),
    ({"priority": "high", "source": {"repo": "/no\0where"}}, ["/source/repo", "/priority"]),
    (
        {"limits": {"iterations": "3", "cost": {"amount": "x"}}, "title": " "},
        ["/limits/iterations", "/limits/cost/amount", "/limits/cost/currency", "/title"],
    ),
]


@pytest.mark.parametrize(("change", "pointers"), PROBLEMS_BESIDE_EACH_OTHER)
def test_a_wrong_type_hides_no_other_problem(
    change: dict[str, Any], pointers: list[str], api: Client, profiles: list[AgentProfile]
) -> None:
    found = problem(post(api, "/tasks", {**BODY, **change}), 400, "invalid")["errors"]
    assert [error["pointer"] for error in found] == pointers
    assert not Task.objects.exists()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ("{", 400, "malformed_json"),
        ("[]", 400, "malformed_json"),
        (b'{"title": "\xff"}', 400, "malformed_json"),
        ('{"title": "a", "title": "b"}', 400, "malformed_json"),
        ('{"priority": NaN}', 400, "malformed_json"),
        ('{"priority": Infinity}', 400, "malformed_json"),
        ('{"priority": ' + "9" * 5000 + "}", 400, "malformed_json"),
        ('{"spec": ' + "[" * 40 + "]" * 40 + "}", 400, "too_deep"),
        ("[" * 100_000, 400, "too_deep"),
        ('{"title": "' + "x" * 1_000_001 + '"}', 413, "too_large"),
        ('{"title": "\\u0000"}', 400, "invalid"),
        ('{"title": "\\ud800"}', 400, "invalid"),
        ('{"\\ud800": 1}', 400, "invalid"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_bodies_that_can_be_read_in_two_ways_are_refused(
    api: Client, body: Any, status: int, code: str
) -> None:
    problem(post(api, "/tasks", body), status, code)


def test_errors_of_the_protocol_are_problem_documents(api: Client, project: Project) -> None:
    problem(api.get("/api/v1/nothing"), 404, "not_found")
    problem(api.get("/api/v1/runs/999"), 404, "not_found")
    problem(api.get("/api/v1/tasks/T-999"), 404, "not_found")
    problem(api.get("/api/v1/tasks/abc"), 404, "not_found")
    response = api.put("/api/v1/tasks")
    problem(response, 405, "method_not_allowed")
    assert "POST" in response["Allow"]
    problem(api.post("/api/v1/tasks", {"title": "x"}), 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer lw_wrong", "Basic YTpi", "Bearer lw_ü", "Token x"]
)
def test_without_a_good_token_nothing_is_said(project: Project, header: str) -> None:
    run = make_run(project)
    client = Client(headers={"Authorization": header} if header else {})
    for path in ("tasks", f"runs/{run.pk}", "escalations", f"runs/{run.pk}/events"):
        response = client.get(f"/api/v1/{path}")
        problem(response, 401, "not_authenticated")
        assert response["WWW-Authenticate"] == 'Bearer realm="loopwarden"'


def test_a_session_opens_no_door_of_the_api(pages: Client, project: Project) -> None:
    problem(pages.get("/api/v1/tasks"), 401, "not_authenticated")


def test_a_token_sees_only_its_own_project(api: Client, alice: User) -> None:
    foreign = Project.objects.create(slug="other", name="Other")
    run = make_run(foreign, status=RunStatus.AT_GATE)
    item = make_item(run)
    for path in (
        f"tasks/{run.task_id}",
        f"runs/{run.pk}",
        f"runs/{run.pk}/events",
        f"escalations/{item.pk}",
        f"escalations/{item.pk}/decision",
    ):
        problem(api.get(f"/api/v1/{path}"), 404, "not_found")
    problem(post(api, f"/runs/{run.pk}/cancel", {}), 404, "not_found")
    decision = {"decision": "accept", "digest": item.digest}
    problem(post(api, f"/escalations/{item.pk}/decision", decision), 404, "not_found")
    assert api.get("/api/v1/tasks").json()["data"] == []
    assert api.get("/api/v1/escalations").json()["data"] == []
    _, text = tokens.create("theirs", user=alice, project=foreign)
    theirs = Client(headers={"Authorization": f"Bearer {text}"})
    assert len(theirs.get("/api/v1/tasks").json()["data"]) == 1


def test_the_gate_is_decided_once_on_what_was_shown(api: Client, project: Project) -> None:
    """RC142 over HTTP."""
    run = make_run(project, status=RunStatus.AT_GATE)
    item = make_item(run)
    (listed,) = api.get("/api/v1/escalations").json()["data"]
    assert listed == api.get(f"/api/v1/escalations/{item.pk}").json()
    path = f"/escalations/{item.pk}/decision"
    problem(api.get(f"/api/v1{path}"), 404, "not_decided")
    good = {"decision": "continue", "digest": listed["digest"], "guidance": "Batches."}
    stale = problem(post(api, path, {**good, "digest": "0" * 64}), 409, "not_possible_now")
    assert stale["detail"] == "What you saw has changed since. Look at it again."
    wrong = problem(post(api, path, {**good, "guidance": ""}), 400, "invalid")
    assert wrong["errors"][0]["pointer"] == "/guidance"
    problem(post(api, path, {**good, "iterations": 0}), 400, "invalid")
    problem(post(api, path, {**good, "decision": "maybe"}), 400, "invalid")
    response = post(api, path, good)
    assert response.status_code == 200
    assert response.json()["decision"]["run_status"] == "queued"
    assert api.get(f"/api/v1{path}").json()["decided_by"] == "alice"
    problem(post(api, path, good), 409, "not_possible_now")
    assert api.get("/api/v1/escalations").json()["data"] == []
    assert Run.objects.get(pk=run.pk).limit_iterations == 8
    assert Escalation.objects.get().granted_iterations == 2


def test_the_same_key_gives_the_same_task_and_another_body_422(
    api: Client, profiles: list[AgentProfile]
) -> None:
    first = post(api, "/tasks", BODY, **{"Idempotency-Key": "k1"}).json()
    reordered = dict(reversed(BODY.items()))
    assert post(api, "/tasks", reordered, **{"Idempotency-Key": "k1"}).json() == first
    other = {**BODY, "title": "Another"}
    problem(post(api, "/tasks", other, **{"Idempotency-Key": "k1"}), 422, "idempotency_key_reused")
    assert post(api, "/tasks", BODY, **{"Idempotency-Key": "k2"}).json()["id"] != first["id"]
    problem(post(api, "/tasks", BODY, **{"Idempotency-Key": "k" * 256}), 400, "bad_idempotency_key")


def test_a_refused_request_does_not_use_its_key_up(
    api: Client, profiles: list[AgentProfile]
) -> None:
    key = {"Idempotency-Key": "k1"}
    assert post(api, "/tasks", {**BODY, "title": ""}, **key).status_code == 400
    assert post(api, "/tasks", BODY, **key).status_code == 202


@pytest.mark.django_db(transaction=True)
def test_ten_equal_requests_at_once_make_one_task(
    bearer: dict[str, str], profiles: list[AgentProfile]
) -> None:
    """RC166."""
    start, answers = threading.Barrier(10), []

    def send() -> None:
        client = Client(**bearer)  # type: ignore[arg-type]
        start.wait()
        response = post(client, "/tasks", BODY, **{"Idempotency-Key": "k1"})
        answers.append((response.status_code, response.json().get("run", {}).get("id")))
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(answers)) == 1
    assert answers[0][0] == 202
    assert Task.objects.count() == Run.objects.count() == 1


def test_a_repository_out_of_reach_is_a_problem_at_its_field(api: Client, tmp_path: Path) -> None:
    body = {
        "pattern": "check_fix",
        "title": "x",
        "spec": {"checks": ["true"], "fixes": ["true"]},
        "limits": {"iterations": 1},
        "source": {"repo": str(tmp_path)},
    }
    found = problem(post(api, "/tasks", body), 400, "refused")["errors"]
    assert [error["pointer"] for error in found] == ["/source/repo"]


def test_health_needs_no_token_and_says_what_is_missing(client: Client, db: None) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    response = client.get("/readyz")
    assert response.status_code == 503
    assert response.json() == {
        "status": "not ready",
        "redis": True,
        "database": True,
        "worker": False,
    }
