"""The form for a graph: a document in, a graph or every problem out."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard.api.graph_bodies import read_graph
from dashboard.documents import read_document
from dashboard.graph_documents import EXAMPLE, as_yaml, document_of
from loops.models import Graph, Project
from loops.store.graph_grants import raise_limits
from tests.dashboard.test_pages import text_of
from tests.engine import graph_scenes as g
from tests.engine import scenes
from workers.graph_intake import accept_graph

pytestmark = pytest.mark.django_db(transaction=True)


def send(pages: Client, document: str, **more: str) -> Any:
    """Press the button."""
    return pages.post("/graphs/new/", {"document": document, **more})


def typed(answer: Any) -> str:
    """What stands in the field."""
    found = re.search(r"<textarea[^>]*>\n(.*)</textarea>", answer.content.decode(), re.DOTALL)
    assert found
    return html.unescape(found[1])


def test_the_example_is_loaded_and_starts_as_it_is(
    pages: Client, project: Project, alice: User
) -> None:
    assert typed(pages.get("/graphs/new/")) == ""
    loaded = send(pages, "  ", example="1")
    assert (loaded.status_code, typed(loaded)) == (200, EXAMPLE)
    answer = send(pages, typed(loaded).replace("\n", "\r\n"))
    graph = Graph.objects.get()
    assert answer.headers["Location"] == f"/graphs/{graph.pk}/?created=graph"
    assert (graph.title, graph.created_by, graph.project) == ("Is it ready?", alice, project)
    assert g.started(graph) == ["tests", "style"]
    assert g.drive(graph).status == "at_gate"
    assert g.signals(graph) == {"tests": "ok", "style": "soft_objection", "report": "ok"}
    assert g.task_of(graph, "report").title == "Report: tests succeeded"


def test_the_example_replaces_nothing_that_was_typed(pages: Client) -> None:
    answer = send(pages, "title: mine", example="1")
    assert typed(answer) == "title: mine"
    assert "Your text is kept" in text_of(answer.content.decode())


def test_every_problem_comes_at_once_with_its_place_and_the_text_as_it_was(
    pages: Client, project: Project
) -> None:
    text = """# <b>mine</b>
mode: sideways
limits: {cost: {amount: "x", currency: USD}}
nodes:
  a: {pattern: nothing}
  b: {pattern: contract, spec: {builder: nobody}, limits: {iterations: 1}, aims: 3}
edges: [{from: a, to: moon}]
"""
    answer = send(pages, text)
    assert (answer.status_code, Graph.objects.count()) == (400, 0)
    assert typed(answer) == text
    read = text_of(answer.content.decode())
    for words in (
        "mode : Input should be 'serial' or 'parallel'",
        "limits.cost.amount :",
        "nodes.b.aims : there is no such field; did you mean aim?",
        "nodes.a.pattern : unknown pattern 'nothing'",
        "edges.0.to : there is no node 'moon'",
        "title : say in a few words",
    ):
        assert words in read, words
    assert "<b>mine" not in answer.content.decode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no document yet"),
        ("a: [", "in line 1"),
        ("{a: 1, a: 2}", "stands there twice in line 1"),
        ('{"a": 1, "a": 2}', "stands there twice"),
        ("- 1", "must be one object with nodes"),
        ("x: " + "y" * 1_000_000, "more than 1,000,000 bytes"),
    ],
)
def test_what_is_no_document_is_said_and_kept(
    pages: Client, project: Project, text: str, words: str
) -> None:
    answer = send(pages, text)
    assert answer.status_code == 400
    assert words in text_of(answer.content.decode())
    assert typed(answer) == text


def test_json_is_taken_as_well_with_tabs_too(pages: Client, project: Project) -> None:
    task = {
        "pattern": "contract",
        "spec": {"builder": "retry_feature"},
        "limits": {"iterations": 1},
    }
    body = json.dumps({"title": "tabs", "nodes": {"a": task}}, indent="\t")
    assert send(pages, body).status_code == 302
    assert Graph.objects.get().title == "tabs"


def test_a_second_click_starts_no_second_graph(pages: Client, project: Project) -> None:
    first, second = (send(pages, EXAMPLE, request_key="k") for _ in range(2))
    assert first.headers["Location"] == second.headers["Location"]
    other = send(pages, EXAMPLE.replace("ready", "right"), request_key="k")
    assert (other.status_code, Graph.objects.count()) == (400, 1)
    assert "sent before with other contents" in text_of(other.content.decode())


def test_the_project_is_chosen_and_must_be_there(pages: Client, project: Project) -> None:
    Project.objects.create(slug="other", name="Other")
    assert send(pages, EXAMPLE, project="other").status_code == 302
    assert Graph.objects.get().project.slug == "other"
    assert send(pages, EXAMPLE, project="nowhere").status_code == 404


def test_only_people_who_are_logged_in_submit(project: Project) -> None:
    assert send(Client(), EXAMPLE).headers["Location"].startswith("/login/")


def test_a_graph_that_ended_is_started_again_from_its_document(
    pages: Client, project: Project, tmp_path: Any, alice: User
) -> None:
    scenes.agent("worker", "worker", "text")
    repo = str(scenes.repository(tmp_path / "repo", n="0\n"))
    document: dict[str, Any] = {
        "title": "Again",
        "aim": "First line.\nSecond: # line {{ not }} filled.\n",
        "mode": "parallel",
        "governor": "lead",
        "limits": {
            "tokens": 5,
            "deadline_seconds": 900,
            "cost": {"amount": "1.5", "currency": "USD"},
        },
        "nodes": {
            "b": {
                "pattern": "one_pass",
                "title": "2026-01-01",
                "spec": {"command": "echo yes >n"},
                "limits": {"iterations": 1, "cost": {"amount": "0.5", "currency": "USD"}},
                "priority": 3,
                "source": {"repo": repo},
                "on_fail": "hard_veto",
            },
            "a": {
                "pattern": "one_pass",
                "aim": "{{ graph.aim }}",
                "spec": {"prompt": "{{ nodes.b.result }}\n  more"},
                "limits": {"iterations": 1},
                "agents": {"worker": "worker"},
                "on_limit": "stop",
                "source": {"from": "b"},
            },
            "lead": {},
        },
        "edges": [{"from": "b", "to": "a", "kind": "handoff"}, {"from": "a", "to": "lead"}],
    }
    asked, unread = read_graph(document)
    graph = accept_graph(asked, project=project, user=None, roots=[tmp_path], unread=unread)
    raise_limits(graph.pk, {"tokens": 50}, user=alice)
    graph.refresh_from_db()
    written = document_of(graph)
    assert written == {**document, "aim": document["aim"].strip()}
    assert list(written["nodes"]) == ["b", "a", "lead"]
    assert read_document(as_yaml(written), is_json=False) == written
    assert typed(pages.get(f"/graphs/new/?from={graph.pk}")) == as_yaml(written)
    for wrong in ("999", "x", "9" * 30):
        assert pages.get(f"/graphs/new/?from={wrong}").status_code == 404


def test_only_a_graph_that_is_over_offers_to_start_again(pages: Client) -> None:
    graph = g.submitted(g.node("a", g.retry()))
    assert "Start it again" not in text_of(pages.get(f"/graphs/{graph.pk}/").content.decode())
    g.drive(graph)
    assert "Start it again" in text_of(pages.get(f"/graphs/{graph.pk}/").content.decode())
