"""How attempts end and in which words: exits, aborts, used-up iterations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from loops.models import Escalation
from loops.patterns import contract
from tests.engine import scenes
from workers.intake import TaskRequest, accept

pytestmark = pytest.mark.django_db(transaction=True)


def leaving(arguments: dict[str, Any], info: Any, effects: Any) -> Any:
    """A contract whose first attempt wants to end the process."""
    from dataclasses import replace

    from loops.patterns.examples import retry_feature

    built = retry_feature(arguments, info, effects)
    return replace(built, action_policy=lambda _context: sys.exit("no luck"))


def test_a_stored_spec_that_holds_no_more_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(contract._builders, "here_today", f"{__name__}:leaving")
    task = accept(
        TaskRequest(
            pattern="contract",
            title="leave",
            spec={"builder": "here_today", "arguments": '{"accept_up_to": 3}'},
            limits={"iterations": 3, "errors": 0},
            on_limit="stop",
        ),
        project=scenes.project(),
        user=None,
    )
    monkeypatch.delitem(contract._builders, "here_today")
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason) == ("budget_exhausted", "errors")
    assert "no builder is called 'here_today'" in run.reason


def test_an_exit_ends_the_attempt_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(contract._builders, "leaving", f"{__name__}:leaving")
    task = accept(
        TaskRequest(
            pattern="contract",
            title="leave",
            spec={"builder": "leaving", "arguments": '{"accept_up_to": 3}'},
            limits={"iterations": 3, "errors": 0},
            on_limit="stop",
        ),
        project=scenes.project(),
        user=None,
    )
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason, run.attempt_no) == ("budget_exhausted", "errors", 2)
    assert "the task's own code ended its process by SystemExit('no luck')" in run.reason


def test_a_reviewer_s_abort_says_that_it_is_one_and_no_page_says_it_twice(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    task = scenes.verify_task(repo, [{"a.txt": "a"}], [scenes.review("abort", "hopeless")])
    run = scenes.drive(task.runs.get())
    item = Escalation.objects.get(run=run)
    assert run.reason == "The reviewer stops the work and asks for a person. hopeless"
    assert (item.heading, item.detail) == (
        "The reviewer stops the work and asks for a person.",
        "hopeless",
    )


def test_used_up_iterations_are_said_once() -> None:
    said = "All 2 allowed iterations are used without success."
    item = Escalation(cause="iterations", reason=said)
    assert (item.heading, item.detail) == (said, "")
