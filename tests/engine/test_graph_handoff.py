"""What one node hands to the next: text into text, files as a commit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from loops.core.contract import LoopContract
from loops.core.effects import Effects
from loops.patterns import contract
from loops.patterns.base import BuildInfo
from loops.patterns.examples import RetryFeatureState, retry_feature
from loops.store import artifacts
from tests.engine import graph_scenes as g
from tests.engine import scenes
from workers.graph_intake import NodeRequest
from workers.intake import TaskRequest

pytestmark = pytest.mark.django_db(transaction=True)


def _command(command: str, repo: Path | None = None) -> TaskRequest:
    return g.one_pass(spec={"command": command}, agents={}, repo=str(repo) if repo else None)


def _handed(name: str, command: str, source: str) -> NodeRequest:
    return g.node(name, _command(command), source_from=source)


def test_the_result_of_one_task_is_text_of_the_next_and_is_not_read_again() -> None:
    scenes.agent("worker", "worker", "do {{ nodes.a.reason }} \\1", "done")
    graph = g.submitted(
        g.node("a", g.one_pass("Aim: {{ graph.aim }}")),
        g.node("b", g.one_pass("Before: <{{ nodes.a.result }}> {{ x }}")),
        edges_text="a>b:data",
    )
    g.drive(graph)
    assert g.task_of(graph, "a").spec["prompt"] == "Aim: Ship the release."
    prompt = g.task_of(graph, "b").spec["prompt"]
    assert prompt == "Before: <do {{ nodes.a.reason }} \\1> {{ x }}"
    assert graph.outcome == "success"


def anything(
    _arguments: dict[str, Any], info: BuildInfo, effects: Effects
) -> LoopContract[RetryFeatureState]:
    """A builder that takes every argument."""
    return retry_feature({}, info, effects)


def test_a_json_text_is_filled_inside_its_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(contract._builders, "anything", f"{__name__}:anything")
    said = '"}, {"accept_up_to": 9'
    scenes.agent("worker", "worker", said)
    arguments = '{"x": ["{{ nodes.a.result }}"], "n": 1}'
    task = g.retry(spec={"builder": "anything", "arguments": arguments})
    graph = g.submitted(g.node("a", g.one_pass()), g.node("b", task), edges_text="a>b:data")
    scenes.step(g.run_of(graph, "a"))
    assert json.loads(g.task_of(graph, "b").spec["arguments"]) == {"x": [said], "n": 1}


def test_a_task_starts_from_the_files_that_another_delivered(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", base="0\n")
    graph = g.submitted(
        g.node("one", _command("echo 1 >one", repo)),
        _handed("two", "cat one && echo 2 >two", "one"),
        _handed("none", "cat two", "two"),
        _handed("last", "cat one two && echo 4 >>one", "none"),
        edges_text="one>two:handoff two>none:handoff none>last:handoff",
    )
    g.drive(graph)
    assert (graph.outcome, g.signals(graph)["last"]) == ("success", "ok")
    one, two, last = (g.run_of(graph, name) for name in ("one", "two", "last"))
    assert two.base_commit == one.result["commit"]
    assert last.base_commit == two.result["commit"]
    patch = artifacts.get_text(last.result["patch"])
    assert ("+4" in patch, "two" in patch) == (True, False)
    assert not (repo / "one").exists()


def test_the_files_travel_to_a_host_that_has_never_seen_them(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", base="0\n")
    graph = g.submitted(
        g.node("one", _command("echo 1 >one", repo)),
        _handed("two", "cat one && echo 2 >two", "one"),
        edges_text="one>two:handoff",
    )
    scenes.step(g.run_of(graph, "one"))
    from django.conf import settings

    shutil.rmtree(settings.DATA_DIR / "runs" / str(g.run_of(graph, "one").pk))
    assert g.drive(graph).outcome == "success"


def test_uncommitted_changes_go_along_with_what_is_handed_on(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", base="0\n")
    (repo / "dirty").write_text("d\n")
    first = g.one_pass(
        spec={"command": "cat dirty >one"}, agents={}, repo=str(repo), include_dirty=True
    )
    graph = g.submitted(
        g.node("one", first), _handed("two", "cat dirty one", "one"), edges_text="one>two:handoff"
    )
    assert g.drive(graph).outcome == "success"
