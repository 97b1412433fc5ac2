"""Submitting: every problem at once, nothing stored with one, the same request once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loops import feed
from loops.models import AgentProfile, Artifact, IdempotencyKey, Run, Task
from loops.store.submit import KeyReused, Refused, RequestKey
from tests.engine import rows, scenes
from tests.workers.conftest import START, sh
from workers.intake import TaskRequest, accept, declared_tools
from workers.tools import registry

pytestmark = pytest.mark.django_db(transaction=True)


def _pair(**facts: Any) -> TaskRequest:
    """A coder_reviewer request that can be taken."""
    for role in ("coder", "reviewer"):
        if not AgentProfile.objects.filter(name=role).exists():
            scenes.agent(role, role, "answer")
    usual: dict[str, Any] = {
        "pattern": "coder_reviewer",
        "title": "Write it",
        "spec": {"task": "Write it."},
        "limits": {"iterations": 3},
        "agents": {"coder": "coder", "reviewer": "reviewer"},
    }
    return TaskRequest(**{**usual, **facts})


def _fix(folder: Path, **facts: Any) -> TaskRequest:
    usual: dict[str, Any] = {
        "pattern": "check_fix",
        "title": "Keep it green",
        "spec": {"checks": ["true"], "fixes": ["true"]},
        "limits": {"iterations": 3},
        "repo": str(folder),
    }
    return TaskRequest(**{**usual, **facts})


def _send(request: TaskRequest, key: RequestKey | None = None, **facts: Any) -> Task:
    return accept(request, project=scenes.project(), user=None, request_key=key, **facts)


def _problems(request: TaskRequest, **facts: Any) -> dict[str, str]:
    """What is wrong, code by field; the messages must say it in words."""
    with pytest.raises(Refused) as caught:
        _send(request, **facts)
    assert all(problem.message for problem in caught.value.problems)
    assert not Task.objects.exists()
    assert not Run.objects.exists()
    assert not Artifact.objects.exists()
    return {problem.field: problem.code for problem in caught.value.problems}


def _message(request: TaskRequest, **facts: Any) -> str:
    with pytest.raises(Refused) as caught:
        _send(request, **facts)
    return str(caught.value)


def test_every_problem_is_reported_at_once_with_the_name_of_its_field(tmp_path: Path) -> None:
    request = _pair(
        title=" ",
        spec={"tsak": "Write it."},
        limits={"iterations": 0, "token": 5},
        agents={"coder": "nobody", "painter": "coder"},
        on_limit="ask",
        repo=str(tmp_path / "nowhere"),
    )
    found = _problems(request)
    assert found == {
        "title": "missing",
        "spec.tsak": "extra_forbidden",
        "spec.task": "missing",
        "limits.token": "unknown",
        "limits.iterations": "out_of_range",
        "agents.coder": "unknown",
        "agents.painter": "unknown",
        "agents.reviewer": "does_not_fit",
        "on_limit": "unknown",
        "source.repo": "unusable",
    }


def test_a_text_that_no_database_takes_hides_no_other_problem() -> None:
    request = _pair(
        title="a\0b", spec={"task": "\ud800"}, limits={}, agents={"coder": "x\0"}, repo="\0"
    )
    assert _problems(request) == {
        "title": "bad_text",
        "spec.task": "bad_text",
        "agents.coder": "bad_text",
        "source.repo": "bad_text",
        "limits.iterations": "missing",
        "agents.reviewer": "does_not_fit",
    }


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"spec": {"task": "x", "adversarial_revew": True}}, "did you mean adversarial_review?"),
        ({"limits": {"iteration": 3}}, "did you mean iterations?"),
        ({"pattern": "coder_reviwer"}, "did you mean coder_reviewer?"),
        ({"agents": {"codr": "coder", "reviewer": "reviewer"}}, "did you mean coder?"),
        ({"agents": {"reviewer": "reviewer"}}, "agents.coder: is missing"),
        ({"title": "x" * 201}, "at most 200"),
    ],
)
def test_it_says_what_to_change(facts: dict[str, Any], words: str) -> None:
    assert words in _message(_pair(**facts))


@pytest.mark.parametrize("value", [0, -1, "3", True, 2.5, 10**12], ids=repr)
@pytest.mark.parametrize("name", ["iterations", "tool_calls", "deadline_seconds"])
def test_a_limit_must_be_a_whole_number_that_makes_sense(name: str, value: Any) -> None:
    limits = {"iterations": 3, name: value}
    assert _problems(_pair(limits=limits)) == {f"limits.{name}": "out_of_range"}


@pytest.mark.parametrize("limits", [{}, {"iterations": None}, {"tokens": 5}], ids=repr)
def test_a_task_without_a_cap_on_iterations_is_refused(limits: dict[str, Any]) -> None:
    assert _problems(_pair(limits=limits)) == {"limits.iterations": "missing"}


def test_a_cost_limit_needs_agents_with_a_price() -> None:
    scenes.agent("free", "coder", "x", input_usd_per_mtok=0, output_usd_per_mtok=0)
    scenes.agent("unpriced", "coder", "x", input_usd_per_mtok=None)
    limits = {"iterations": 3, "cost_microusd": 5}
    agents = {"coder": "unpriced", "reviewer": "free"}
    request = _pair(limits=limits, agents=agents)
    assert _problems(request) == {"agents.coder": "price_unknown"}
    assert _send(_pair(limits=limits, agents={"coder": "free", "reviewer": "free"}))
    assert _send(_pair(agents=agents))


def test_a_repository_is_needed_by_one_pattern_and_refused_by_another(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    assert _problems(_fix(repo, repo=None)) == {"source.repo": "does_not_fit"}
    assert _problems(_pair(repo=str(repo))) == {"source.repo": "does_not_fit"}


@pytest.mark.parametrize(
    ("script", "words"),
    [("true", "no git repository"), (START, "no commit yet"), ("touch ../file", "is a file")],
)
def test_a_folder_that_cannot_be_worked_on_is_refused(
    script: str, words: str, folder: Path
) -> None:
    sh(script, folder)
    path = folder.parent / "file" if "file" in script else folder
    assert words in _message(_fix(path))


def test_a_repository_outside_of_the_roots_is_refused(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    assert "lies outside" in _message(_fix(repo), roots=[tmp_path / "elsewhere"])
    assert _send(_fix(repo), roots=[tmp_path])


def test_a_dirty_submodule_is_refused_with_uncommitted_changes_only(folder: Path) -> None:
    sh(
        f"{START} git init -q sub && cd sub && git config user.email u@e.t && git config user.name"
        " U && echo 1 > n && git add -A && git commit -qm sub && cd .. && git add sub 2>/dev/null"
        " && git commit -qm base && echo 2 > sub/n",
        folder,
    )
    assert "the submodule sub has changes" in _message(_fix(folder, include_dirty=True))
    assert _send(_fix(folder))


def test_a_refused_task_leaves_neither_hook_nor_uncommitted_changes_behind(folder: Path) -> None:
    sh(f"{START} echo 1 > n && git add -A && git commit -qm base && echo 2 > n", folder)
    hook = folder / ".git" / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    request = _fix(folder, include_dirty=True, limits={})
    assert _problems(request) == {"limits.iterations": "missing"}
    task = _send(_fix(folder, include_dirty=True))
    assert task.source is not None
    assert Artifact.objects.count() == 2
    assert "with its uncommitted changes" in task.source["notes"][0]


def test_the_same_key_gives_the_same_task_and_another_body_is_refused() -> None:
    key = RequestKey(owner="user:1", key="k", request_digest="a")
    first = _send(_pair(), key)
    assert _send(_pair(), key) == first
    with pytest.raises(KeyReused):
        _send(_pair(title="Other"), RequestKey(owner="user:1", key="k", request_digest="b"))
    assert _send(_pair(), RequestKey(owner="user:2", key="k", request_digest="b")) != first
    assert (Task.objects.count(), Run.objects.count()) == (2, 2)


def test_rc166_ten_equal_requests_at_once_make_one_task() -> None:
    key = RequestKey(owner="user:1", key="k", request_digest="a")
    request, project = _pair(), scenes.project()

    def send(_: int) -> Task:
        return accept(request, project=project, user=None, request_key=key)

    answers = rows.together(10, send)
    assert {task.pk for task in answers if isinstance(task, Task)} == {Task.objects.get().pk}
    assert len([task for task in answers if isinstance(task, Task)]) == 10, answers
    assert (Run.objects.count(), IdempotencyKey.objects.count()) == (1, 1)


def test_submitting_works_while_redis_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "client", rows.nowhere)
    monkeypatch.setattr(feed, "_silent_until", 0.0)
    assert _send(_pair()).runs.get().status == "queued"


def test_a_tool_that_nobody_declared_is_refused_with_those_there_are(settings: Any) -> None:
    settings.LOOPWARDEN_TOOLS = ["pay:high_impact=acme.tools:pay"]
    scenes.agent("model", "planner", "x")
    request = TaskRequest(
        pattern="plan_execute_review",
        title="plan",
        spec={"goal": "Reach it.", "tools": ["read_file", "rm_rf", "pay"]},
        limits={"iterations": 3},
        agents={"planner": "model", "reviewer": "model"},
    )
    with pytest.raises(Refused) as caught:
        accept(request, project=scenes.project(), user=None)
    (problem,) = caught.value.problems
    assert (problem.field, problem.code) == ("spec.tools", "unknown")
    assert problem.message == (
        "there is no tool 'rm_rf'; there are: edit_file, http_get, list_files, pay, read_file,"
        " run_check, search, write_file"
    )


def test_every_tool_of_the_registry_is_declared(settings: Any) -> None:
    settings.LOOPWARDEN_TOOLS = []
    assert declared_tools() == frozenset(registry())
