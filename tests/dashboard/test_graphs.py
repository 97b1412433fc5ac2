"""Graphs on page, API and command line."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.api.graph_bodies import read_graph
from dashboard.documents import Unreadable, read_document
from dashboard.graph_progress import follow_graph, results, table
from loops import clock
from loops.models import AgentProfile, Escalation, Graph, GraphGrant, Project, Task
from loops.store.submit import Refused
from tests.dashboard.test_pages import text_of
from tests.engine import graph_scenes as g
from tests.engine import scenes
from workers import graphs
from workers.graph_intake import accept_graph

pytestmark = pytest.mark.django_db(transaction=True)

TASK = {
    "pattern": "contract",
    "spec": {"builder": "retry_feature", "arguments": "{}"},
    "limits": {"iterations": 2},
}
DOCUMENT: dict[str, Any] = {
    "title": "Release",
    "aim": "Ship it.",
    "mode": "parallel",
    "governor": "lead",
    "limits": {"cost": {"amount": "1.50", "currency": "USD"}, "model_calls": 9},
    "nodes": {"build": TASK, "docs": {**TASK, "on_fail": "soft_objection"}, "lead": {}},
    "edges": [{"from": "build", "to": "lead", "kind": "approval"}, {"from": "docs", "to": "lead"}],
}
YAML = """
title: Release
nodes:
  build:
    pattern: contract
    spec: {builder: retry_feature, arguments: "{}"}
    limits: {iterations: 2}
"""


def _post(bearer: dict[str, str], body: Any, **headers: str) -> Any:
    return Client().post(
        "/api/v1/graphs", json.dumps(body), content_type="application/json", **bearer, **headers
    )


def _wide(project: Project) -> Graph:
    names = [f"n{at}" for at in range(12)]
    nodes = [g.node(name, g.retry()) for name in names]
    ends = " ".join(f"{name}>last" for name in names)
    graph = g.submitted(
        *nodes, g.node("last", g.retry()), edges_text=ends, parallel=True, governor="lead"
    )
    g.drive(graph)
    return graph


def test_s1_22_a_graph_is_submitted_read_and_cancelled_over_http(bearer: dict[str, str]) -> None:
    answer = _post(bearer, DOCUMENT, HTTP_IDEMPOTENCY_KEY="k")
    assert answer.status_code == 202
    made = answer.json()
    assert answer.headers["Location"] == f"/api/v1/graphs/{made['id']}"
    assert (made["status"], made["governor"], made["outcome"]) == ("running", "lead", None)
    assert [node["name"] for node in made["nodes"]] == ["build", "docs", "lead"]
    assert [node["status"] for node in made["nodes"]] == ["queued", "queued", None]
    assert made["edges"][1] == {"from": "docs", "to": "lead", "kind": "dependency"}
    assert made["meters"][-1]["cap"] == {"amount": "1.500000", "currency": "USD"}
    again = _post(bearer, DOCUMENT, HTTP_IDEMPOTENCY_KEY="k")
    assert (again.status_code, again.json()["id"]) == (202, made["id"])
    other = _post(bearer, {**DOCUMENT, "title": "x"}, HTTP_IDEMPOTENCY_KEY="k")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    for key in (made["id"], made["key"]):
        assert Client().get(f"/api/v1/graphs/{key}", **bearer).json()["id"] == made["id"]
    assert [one["id"] for one in Client().get("/api/v1/graphs", **bearer).json()["data"]] == [
        made["id"]
    ]
    gone = Client().post(f"/api/v1/graphs/{made['id']}/cancel", **bearer)
    assert (gone.status_code, gone.json()["outcome"]) == (202, "cancelled")
    assert Client().get("/api/v1/graphs/G-999", **bearer).status_code == 404


def test_the_order_of_the_nodes_is_part_of_the_request(bearer: dict[str, str]) -> None:
    """One after the other, they start in this order: another order is another request."""
    nodes = dict.fromkeys(("a", "b"), TASK)
    made = _post(bearer, {"title": "x", "nodes": nodes}, HTTP_IDEMPOTENCY_KEY="k")
    turned = {"nodes": dict(reversed(nodes.items())), "title": "x"}
    other = _post(bearer, turned, HTTP_IDEMPOTENCY_KEY="k")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    turned_node = {"a": dict(reversed(TASK.items())), "b": TASK}
    same = _post(bearer, {"nodes": turned_node, "title": "x"}, HTTP_IDEMPOTENCY_KEY="k")
    assert (same.status_code, same.json()["id"]) == (202, made.json()["id"])


def test_limits_are_raised_over_http_once_however_often_it_is_asked(
    bearer: dict[str, str],
) -> None:
    made = _post(bearer, DOCUMENT).json()
    url = f"/api/v1/graphs/{made['id']}/grants"
    body = {"limits": {"cost": {"amount": "2.50", "currency": "USD"}}}

    def ask(body: Any) -> Any:
        return Client().post(url, json.dumps(body), content_type="application/json", **bearer)

    for _ in range(2):
        answer = ask(body)
        assert (answer.status_code, answer.json()["meters"][-1]["cap"]["amount"]) == (
            200,
            "2.500000",
        )
    assert GraphGrant.objects.get().cost_microusd == 1_000_000
    wrong = ask({"limits": {"cost": {"amount": "1", "currency": "USD"}, "tokens": 9}})
    assert wrong.status_code == 400
    assert [error["pointer"] for error in wrong.json()["errors"]] == [
        "/limits/tokens",
        "/limits/cost",
    ]
    assert ask({"limits": {"deadline_seconds": 9}}).status_code == 400
    Client().post(f"/api/v1/graphs/{made['id']}/cancel", **bearer)
    over = ask(body)
    assert (over.status_code, over.json()["code"]) == (409, "not_possible_now")
    assert Client().post("/api/v1/graphs/999/grants", **bearer).status_code in (404, 415)


def test_a_deadline_is_asked_for_and_shown(bearer: dict[str, str], pages: Client) -> None:
    made = _post(bearer, {**DOCUMENT, "limits": {"deadline_seconds": 90}}).json()
    assert made["deadline_at"] > made["created_at"]
    assert "Deadline" in text_of(pages.get(f"/graphs/{made['id']}/").content.decode())
    Graph.objects.update(deadline_at=Graph.objects.get().created_at)
    late = Client().get(f"/api/v1/graphs/{made['id']}", **bearer).json()
    assert (late["status"], late["outcome"], late["words"]) == (
        "ended",
        "deadline",
        "Deadline passed",
    )
    read = text_of(pages.get(f"/graphs/{made['id']}/").content.decode())
    assert ("Deadline passed" in read, "Cancel graph" in read) == (True, False)


def test_the_page_raises_the_limits_and_says_what_it_cannot(pages: Client, alice: User) -> None:
    graph = g.submitted(g.node("a", g.retry()), limits={"tokens": 5, "cost_microusd": 2_000_000})
    url = f"/graphs/{graph.pk}/grants/"
    html = pages.get(f"/graphs/{graph.pk}/").content.decode()
    assert 'name="grant-cost_microusd" value="2"' in html
    assert 'name="grant-tool_calls"' not in html
    sent = {"grant-tokens": "9", "grant-cost_microusd": ""}
    assert pages.post(url, sent).status_code == 302
    again = pages.post(url, sent, follow=True)
    assert "Nothing was raised" in text_of(again.content.decode())
    grant = GraphGrant.objects.get()
    assert (grant.tokens, grant.cost_microusd, grant.granted_by) == (4, 0, alice)
    wrong = pages.post(url, {"grant-tokens": "3", "grant-cost_microusd": "2.5"})
    assert wrong.status_code == 400
    read = text_of(wrong.content.decode())
    assert "Nothing was raised." in read
    assert "is 9 already: a grant only raises it" in read
    assert 'value="2.5"' in wrong.content.decode()
    assert pages.post(url, {"grant-tokens": "many"}).status_code == 400
    graphs.cancel(graph, actor="bob")
    late = pages.post(url, {"grant-tokens": "99"}, follow=True)
    assert "starts nothing any more" in text_of(late.content.decode())
    assert 'name="grant-tokens"' not in late.content.decode()


def test_the_gate_says_whose_limit_it_is_and_what_going_on_raises(bob: User) -> None:
    scenes.agent("worker", "worker", "a", "b")
    graph = g.submitted(
        *(g.node(name, g.one_pass(on_limit="gate")) for name in "ab"),
        limits={"cost_microusd": 4_000},
    )
    g.drive(graph)
    item = Escalation.objects.get()
    desk = Client()
    desk.force_login(bob)
    read = text_of(desk.get(f"/gate/{item.pk}/").content.decode())
    for words in ("What its graph may spend is used", "may spend to $0.008", "0 of 1 used"):
        assert words in read, words
    assert "More rounds" not in read
    sent = {"digest": item.digest, "decision": "continue", "guidance": ""}
    assert desk.post(f"/gate/{item.pk}/", sent).status_code == 302
    graph.refresh_from_db()
    assert graph.limit_cost_microusd == 8_000


def test_a_graph_of_another_project_is_not_seen(bearer: dict[str, str]) -> None:
    graph = g.submitted(g.node("a", g.retry()))
    assert Client().get(f"/api/v1/graphs/{graph.pk}", **bearer).status_code == 404


def test_s1_x06_every_problem_of_the_document_comes_at_once_with_its_pointer(
    bearer: dict[str, str],
) -> None:
    body = {
        "mode": "sideways",
        "limits": {"iterations": 3},
        "colour": "red",
        "governor": "boss",
        "nodes": {
            "build": {**TASK, "specs": {}, "limits": {"iteration": 1}},
            "docs": {**TASK, "spec": {"builder": "nobody"}},
            "files": {**TASK, "source": {"repo": "/x", "from": "docs"}},
            "odd": 3,
            "e": {"pattern": "coder_reviewer", "spec": {"task": ""}, "priority": "high"},
        },
        "edges": [{"from": "build", "to": "moon", "kind": "wish"}, {"frm": "docs", "to": "build"}],
    }
    answer = _post(bearer, body)
    assert (answer.status_code, Graph.objects.count()) == (400, 0)
    found = {error["pointer"]: error["detail"] for error in answer.json()["errors"]}
    assert list(found) == [
        "/mode",
        "/limits/iterations",
        "/edges/0/kind",
        "/edges/1/from",
        "/edges/1/frm",
        "/colour",
        "/nodes/build/limits/iteration",
        "/nodes/build/specs",
        "/nodes/files/source",
        "/nodes/odd",
        "/nodes/e/priority",
        "/title",
        "/governor",
        "/nodes/build/limits/iterations",
        "/nodes/docs/spec/builder",
        "/nodes/e/spec/task",
        "/nodes/e/limits/iterations",
        "/nodes/e/agents/coder",
        "/nodes/e/agents/reviewer",
    ]
    assert found["/nodes/build/specs"].endswith("did you mean spec?")
    assert found["/edges/1/frm"].endswith("did you mean from?")


def test_an_empty_name_is_pointed_at_where_it_stands(bearer: dict[str, str]) -> None:
    answer = _post(bearer, {"title": "x", "nodes": {"": {"pattern": "nothing"}}, "edges": [5]})
    errors = {error["pointer"]: error["detail"] for error in answer.json()["errors"]}
    assert list(errors) == ["/edges/0", "/nodes/", "/nodes//pattern", "/nodes//limits/iterations"]
    assert (errors["/edges/0"], errors["/nodes/"]) == ("must be an object", "has no name")


def test_what_to_know_of_its_tasks_is_said_when_a_graph_is_taken(bearer: dict[str, str]) -> None:
    for name in ("one", "two"):
        scenes.agent(name, name, "x")
        AgentProfile.objects.filter(name=name).update(provider="command", config={"argv": ["m"]})
    pair = {"agents": {"coder": "one", "reviewer": "two"}, "limits": {"iterations": 1}}
    node = {"pattern": "coder_reviewer", "spec": {"task": "x"}, **pair}
    made = _post(bearer, {"title": "x", "nodes": {"a": node, "b": TASK}})
    said = "reviewer and coder are the same model: they share blind spots"
    assert made.status_code == 202, made.content
    (note,) = made.json()["notes"]
    assert note in {f"a: {said}", f"a: {said.replace('reviewer and coder', 'coder and reviewer')}"}


def test_a_relative_repository_is_refused_over_http(bearer: dict[str, str]) -> None:
    for repo in ("../app", ".", "~/app"):
        node = {**TASK, "source": {"repo": repo}}
        errors = _post(bearer, {"title": "x", "nodes": {"a": node}}).json()["errors"]
        assert [error["pointer"] for error in errors] == ["/nodes/a/source/repo"]
        assert "give it from the root on" in errors[0]["detail"]


def test_the_page_shows_nodes_edges_budget_and_what_waits(pages: Client, bob: User) -> None:
    graph = g.submitted(
        g.node("scan", g.retry(0), on_fail="soft_objection"),
        g.node("build", g.retry()),
        edges_text="scan>build:data",
        governor="lead",
        limits={"tokens": 100},
    )
    html = pages.get(f"/graphs/{graph.pk}/").content.decode()
    for words in ("Ship the release.", "one task at a time", "scan started as T-", "Decides last"):
        assert words in text_of(html), words
    assert 'class="edge is-data"' in html
    assert f"graph.{graph.pk} run.{g.run_of(graph, 'scan').pk}" in html
    g.drive(graph)
    read = text_of(pages.get(f"/graphs/{graph.pk}/").content.decode())
    for words in ("Governor asked", "Objects", "Limit reached", "Succeeded", "Decide"):
        assert words in read, words
    item = Escalation.objects.get()
    desk = Client()
    desk.force_login(bob)
    shown = text_of(desk.get(f"/gate/{item.pk}/").content.decode())
    for words in ("Governor decides", "Aim Ship the release.", "Objects", "Change the goal"):
        assert words in shown, words
    typed = {"digest": item.digest, "decision": "change_goal", "guidance": ""}
    refused = desk.post(f"/gate/{item.pk}/", typed)
    assert refused.status_code == 400
    assert "Say what the new goal is." in text_of(refused.content.decode())
    decided = desk.post(f"/gate/{item.pk}/", {**typed, "guidance": "Ship half."}, follow=True)
    assert "Change the goal. Decided by bob" in text_of(decided.content.decode())
    graphs.run_pass()
    read = text_of(pages.get(f"/graphs/{graph.pk}/").content.decode())
    assert "Goal changed by bob." in read
    assert f"Goes on with another aim as G-{graph.pk + 1} : Ship half." in read
    assert "Successor of" in text_of(pages.get(f"/graphs/{graph.pk + 1}/").content.decode())


def test_the_page_cancels_the_graph_once(pages: Client) -> None:
    graph = g.submitted(g.node("a", g.retry()))
    for _ in range(2):
        answer = pages.post(f"/graphs/{graph.pk}/cancel/", follow=True)
        assert answer.status_code == 200
    graph.refresh_from_db()
    assert (graph.outcome, graph.events.latest("seq").kind) == ("cancelled", "ended")
    assert "has ended already" in text_of(answer.content.decode())


@pytest.mark.parametrize("address", ["/graphs/", "/graphs/{pk}/"])
def test_a_page_takes_few_queries_however_wide_the_graph(
    pages: Client, project: Project, address: str
) -> None:
    graph = _wide(project)
    clock.now()  # once a minute for the whole process
    with CaptureQueriesContext(connection) as queries:
        assert pages.get(address.format(pk=graph.pk)).status_code == 200
    assert len(queries) <= 12, [query["sql"][:90] for query in queries]


def test_the_list_pages_and_says_how_far_each_graph_is(
    pages: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No graph yet" in text_of(pages.get("/graphs/").content.decode())
    monkeypatch.setattr("dashboard.views.graphs.PAGE", 1)
    first = g.submitted(g.node("a", g.retry()), governor="lead")
    second = g.submitted(g.node("a", g.retry()))
    g.drive(first)
    read = text_of(pages.get("/graphs/").content.decode())
    assert ("0 of 1 ended" in read, f"G-{first.pk}" in read) == (True, False)
    older = text_of(pages.get(f"/graphs/?older={second.pk}").content.decode())
    assert "1 of 1 ended" in older
    assert pages.get("/graphs/999/").status_code == 404


def test_the_terminal_says_how_to_take_what_nobody_went_on_from(tmp_path: Path) -> None:
    repo = str(scenes.repository(tmp_path / "repo", base="0\n"))
    commands = {name: g.one_pass(spec={"command": f"echo 1 >{name}"}, agents={}) for name in "ab"}
    graph = g.submitted(
        g.node("a", replace(commands["a"], repo=repo)),
        g.node("b", commands["b"], source_from="a"),
        edges_text="a>b:handoff",
    )
    g.drive(graph)
    lines = results(graph)
    assert lines[0] == "b:"
    assert f"loopwarden/t-{g.task_of(graph, 'b').pk}" in lines[1]
    assert not [line for line in lines if f"t-{g.task_of(graph, 'a').pk}" in line]


def _call(*args: str) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    try:
        call_command("submit-graph", *args, stdout=out, stderr=err)
    except SystemExit as ended:
        return int(str(ended.code)), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    ("name", "text"), [("g.yaml", YAML), ("g.json", json.dumps({**DOCUMENT, "title": "Release"}))]
)
def test_the_command_submits_json_and_yaml(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    code, out, _ = _call(str(tmp_path / name))
    graph = Graph.objects.get()
    assert (code, out.splitlines()[0]) == (0, f"G-{graph.pk} submitted: Release")
    assert g.drive(graph).status in ("ended", "at_gate")


def test_rc162_the_command_prints_every_problem_and_stores_nothing(tmp_path: Path) -> None:
    cycle = [{"from": "b", "to": "a"}, {"from": "a", "to": "b"}]
    body = {"title": "x", "nodes": {"a": TASK, "b": {**TASK, "pattern": "x"}}, "edges": cycle}
    (tmp_path / "g.json").write_text(json.dumps(body))
    code, _, err = _call(str(tmp_path / "g.json"))
    assert (code, Graph.objects.count(), Task.objects.count()) == (2, 0, 0)
    assert "edges: these nodes wait for each other: a -> b -> a" in err
    assert "nodes.b.pattern: unknown pattern 'x'" in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2", "the key 'a' stands there twice in line 2"),
        ("a: &x [1]\nb: *x", "aliases are not read in line 2"),
        ("a: !!python/object:os.system {}", "could not determine a constructor"),
        ("a: .nan", "not JSON compliant"),
        ("a: !!binary aGk=", "not JSON serializable"),
        ("[" * 2000, "nested"),
        ("a: [", "expected the node content"),
    ],
)
def test_yaml_is_read_as_plain_data_only(text: str, words: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read_document(text, is_json=False)
    assert words.lower() in str(caught.value).lower()
    assert read_document("a: 2026-01-01", is_json=False) == {"a": "2026-01-01"}


def test_the_document_in_the_docs_can_be_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text()
    text = page.partition("```yaml\n")[2].partition("```")[0]
    request, unread = read_graph(read_document(text, is_json=False))
    assert (unread, request.contract().problems()) == ([], [])
    assert (len(request.nodes), request.limits["cost_microusd"]) == (4, 5_000_000)
    scenes.agent("writer", "worker")
    with pytest.raises(Refused) as caught:
        accept_graph(request, project=scenes.project(), user=None, roots=[Path("/")])
    assert [problem.field for problem in caught.value.problems] == ["nodes.fix.source.repo"]


def test_json_refuses_a_key_that_stands_twice() -> None:
    with pytest.raises(Unreadable, match="twice"):
        read_document('{"a": 1, "a": 2}', is_json=True)


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot read"):
        call_command("submit-graph", str(tmp_path / "no.yaml"))


def test_the_table_of_the_terminal_names_every_node() -> None:
    graph = g.submitted(
        g.node("a", g.retry(0)), g.node("b", g.retry()), edges_text="a>b", governor="lead"
    )
    g.drive(graph)
    said: list[str] = []
    settled = follow_graph(graph.pk, said.append, alive=lambda: True)
    assert said[0].endswith(f"{graph.key}  submitted")
    lines = table(settled)
    assert [line.split("  ")[0].strip() for line in lines[:3]] == ["a", "b", "lead"]
    assert lines[-1].startswith(f"{graph.key}: Governor asked, $0.00. a escalated: All 2")
