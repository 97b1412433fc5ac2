"""The form of a new task: made from each pattern's spec, and nothing typed is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from django.test import Client
from pydantic import BaseModel, Field

from dashboard.forms import TaskForm, spec_field
from loops.models import AgentProfile, Project, Task
from loops.patterns import all_patterns, get
from tests.dashboard.test_pages import text_of
from tests.workers.conftest import START, sh


@pytest.fixture
def repo(tmp_path: Path, settings: Any) -> Path:
    """A repository with one commit, where repositories may come from."""
    settings.LOOPWARDEN_REPO_ROOTS = [tmp_path]
    folder = tmp_path / "shop"
    folder.mkdir()
    sh(START + "echo hi > a && git add a && git commit -q -m one", folder)
    return folder


def filled(name: str, **typed: Any) -> dict[str, Any]:
    """What a browser sends for the pattern's form with its own example in it."""
    form = TaskForm(get(name))
    data: dict[str, Any] = {}
    for field, item in form.fields.items():
        value = item.initial
        if field.startswith("spec."):
            value = get(name).example.get(field.removeprefix("spec."), value)
        data[field] = "\n".join(value) if isinstance(value, list) else value
    data = {field: value for field, value in data.items() if value not in (None, "", False)}
    return {**data, "title": f"A {name}", **typed}


@pytest.mark.parametrize("pattern", all_patterns(), ids=lambda pattern: pattern.name)
@pytest.mark.django_db
def test_every_pattern_has_a_form_with_all_its_fields(pattern: Any, pages: Client) -> None:
    html = pages.get(f"/tasks/new/{pattern.name}/").content.decode()
    for name, item in pattern.spec.model_fields.items():
        assert f'name="spec.{name}"' in html
        assert item.title in html
    assert ('name="source.repo"' in html) is (pattern.uses_workspace != "none")
    assert f'value="{pattern.default_limits.iterations}"' in html


def test_check_fix_is_submitted_with_its_repository(
    pages: Client, project: Project, repo: Path
) -> None:
    typed = filled(
        "check_fix",
        **{
            "spec.checks": "ruff check .\r\npytest -q",
            "spec.fixes": "ruff check --fix .\r\npytest --fix",
            "source.repo": str(repo),
            "limits.cost_microusd": "2.50",
            "limits.deadline_seconds": "90",
        },
    )
    response = pages.post("/tasks/new/check_fix/", typed)
    assert response.status_code == 302, text_of(response.content.decode())
    task = Task.objects.get()
    assert response["Location"] == f"/tasks/{task.pk}/?created"
    assert task.spec["checks"] == ["ruff check .", "pytest -q"]
    assert task.limits["cost_microusd"] == 2_500_000
    assert task.limits["deadline_seconds"] == 5400
    assert task.created_by is not None
    assert task.created_by.get_username() == "alice"


def test_coder_reviewer_is_submitted_with_its_agents(
    pages: Client, project: Project, profiles: list[AgentProfile]
) -> None:
    agents = {"agents.coder": "scripted-coder", "agents.reviewer": "scripted-coder"}
    response = pages.post("/tasks/new/coder_reviewer/", filled("coder_reviewer", **agents))
    assert response.status_code == 302, text_of(response.content.decode())
    assert Task.objects.get().agents == {"coder": "scripted-coder", "reviewer": "scripted-coder"}


def test_all_problems_stand_at_their_fields_and_what_was_typed_stays(
    pages: Client, project: Project
) -> None:
    typed = {
        "title": "",
        "local_aim": "keep <this>",
        "spec.checks": "",
        "limits.iterations": "0",
        "limits.tokens": "many",
        "source.repo": "/no/such/repository",
        "source.include_dirty": "on",
        "on_limit": "stop",
        "priority": "3",
    }
    response = pages.post("/tasks/new/check_fix/", typed)
    assert response.status_code == 400
    html = response.content.decode()
    assert "keep &lt;this&gt;" in html
    assert 'value="many"' in html
    assert "Enter a whole number." in html

    typed["limits.tokens"] = "10"
    html = pages.post("/tasks/new/check_fix/", typed).content.decode()
    for name in ("title", "spec.checks", "limits.iterations", "source.repo"):
        assert f'id="id_{name}_error"' in html, name
        assert f'href="#id_{name}"' in html, name
    for kept in ('value="/no/such/repository"', 'value="3"', "checked", 'value="stop" selected'):
        assert kept in html, kept
    assert "data-first-problem" in html
    assert not Task.objects.exists()


def test_a_field_that_cannot_be_read_hides_no_other_problem(
    pages: Client, project: Project, profiles: list[AgentProfile]
) -> None:
    typed = {"title": "a\0b", "limits.iterations": "many", "spec.task": "", "on_limit": "gate"}
    answer = pages.post("/tasks/new/coder_reviewer/", typed)
    read = text_of(answer.content.decode())
    assert (answer.status_code, Task.objects.count()) == (400, 0)
    assert "Null characters are not allowed" in read
    assert "Enter a whole number" in read
    assert read.count("is missing: name an agent profile") == 4  # beside the field, and on top
    form = answer.context["form"]
    assert {name: len(texts) for name, texts in form.errors.items()} == {
        "title": 1,
        "limits.iterations": 1,
        "spec.task": 1,
        "agents.coder": 1,
        "agents.reviewer": 1,
    }


def test_a_cost_cap_needs_a_price_and_says_so_at_the_agent(
    pages: Client, project: Project, profiles: list[AgentProfile]
) -> None:
    typed = filled(
        "coder_reviewer",
        **{
            "agents.coder": "local-model",
            "agents.reviewer": "scripted-coder",
            "limits.cost_microusd": "1",
        },
    )
    html = pages.post("/tasks/new/coder_reviewer/", typed).content.decode()
    error = html.split('id="id_agents.coder_error"')[1][:200]
    assert "has no price" in error


def test_a_profile_with_wrong_settings_does_not_close_the_form(pages: Client) -> None:
    AgentProfile.objects.create(name="broken", provider="command")
    AgentProfile.objects.create(name="gone", provider="nobody")
    html = pages.get("/tasks/new/coder_reviewer/").content.decode()
    assert html.count("settings do not fit") == 2 * len(get("coder_reviewer").roles)


def test_a_second_click_starts_no_second_task(
    pages: Client, project: Project, profiles: list[AgentProfile]
) -> None:
    agents = {"agents.coder": "scripted-coder", "agents.reviewer": "scripted-coder"}
    typed = filled("coder_reviewer", request_key="k1", **agents)
    first = pages.post("/tasks/new/coder_reviewer/", typed)
    second = pages.post("/tasks/new/coder_reviewer/", typed)
    assert first["Location"] == second["Location"]
    assert Task.objects.count() == 1
    other = pages.post("/tasks/new/coder_reviewer/", {**typed, "title": "Another"})
    assert other.status_code == 400
    assert "was sent before with other contents" in other.content.decode()


def test_an_unknown_pattern_is_no_page(pages: Client) -> None:
    assert pages.get("/tasks/new/nonsense/").status_code == 404


class Odd(BaseModel):
    """Every kind of field that a spec may have, and one that it may not."""

    count: int = 3
    mode: Literal["fast", "slow"] = "fast"
    note: str | None = None
    pairs: dict[str, str] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("count", "IntegerField"), ("mode", "ChoiceField"), ("note", "CharField")],
)
def test_each_kind_of_spec_field_has_its_form_field(name: str, kind: str) -> None:
    assert type(spec_field(name, Odd.model_fields[name])).__name__ == kind


def test_a_kind_without_a_form_field_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="pairs"):
        spec_field("pairs", Odd.model_fields["pairs"])
