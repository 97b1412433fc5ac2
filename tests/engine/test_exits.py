"""A task's own code that calls `sys.exit` is an error of its attempt, not the death of a worker."""

from __future__ import annotations

import sys
from typing import Any

import pytest

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
