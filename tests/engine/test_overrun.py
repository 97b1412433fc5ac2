"""An agent behind a command line: what it reports is charged, and its bound is no mere wish."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from loops.core.limits import Amount
from loops.models import AgentProfile, AttemptStatus, Run
from tests.engine import scenes
from workers.intake import TaskRequest, accept

pytestmark = pytest.mark.django_db(transaction=True)


def asking(report: dict[str, Any], exit_code: int = 0, on_limit: str = "stop", **argv: Any) -> Run:
    """A run that asks an agent which reports this; a call is bound to $2 and 1000 tokens."""
    script = f"import sys; print({json.dumps(report)!r}); sys.exit({exit_code})"
    AgentProfile.objects.create(
        name="cli",
        provider="command",
        config={
            "argv": [sys.executable, "-c", script],
            "usage_json": True,
            "max_tokens": 1000,
            "max_cost_usd": "2",
            **argv,
        },
    )
    task = accept(
        TaskRequest(
            pattern="one_pass",
            title="ask",
            spec={"prompt": "Go."},
            limits={"iterations": 1, "cost_microusd": 9_000_000, "tokens": 50_000, "errors": 2},
            agents={"worker": "cli"},
            on_limit=on_limit,
        ),
        project=scenes.project(),
        user=None,
    )
    return scenes.drive(task.runs.get())


def counts(tokens: int) -> dict[str, int]:
    return {"input_tokens": tokens, "output_tokens": 0}


@pytest.mark.parametrize("failed", [False, True], ids=["an answer", "an error"])
@pytest.mark.parametrize(
    ("on_limit", "status"), [("stop", "budget_exhausted"), ("gate", "at_gate")]
)
def test_a_cost_above_the_bound_is_charged_and_stops_the_run(
    failed: bool, on_limit: str, status: str
) -> None:
    report = {"result": "x", "is_error": failed, "total_cost_usd": 50, "usage": counts(10)}
    run = asking(report, on_limit=on_limit)
    assert (run.status, run.stop_reason) == (status, "cost")
    assert run.reason == ("One call of cli used $50.00, above its bound of $2.00. It is charged.")
    assert run.used == Amount(model_calls=1, tokens=10, cost_microusd=50_000_000)
    assert (run.errors, run.attempts.get().status) == (0, AttemptStatus.LIMIT)


def test_tokens_above_the_bound_stop_the_run() -> None:
    run = asking({"result": "x", "total_cost_usd": 1, "usage": counts(1001)})
    assert (run.status, run.stop_reason) == ("budget_exhausted", "tokens")
    assert run.reason == (
        "One call of cli used 1001 tokens, above its bound of 1000 tokens. It is charged."
    )


def test_what_reaches_the_bound_is_no_overrun() -> None:
    run = asking({"result": "x", "total_cost_usd": 2, "usage": counts(1000)})
    assert (run.status, run.used.cost_microusd) == ("succeeded", 2_000_000)


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_failure_costs_what_it_reports(exit_code: int) -> None:
    run = asking({"is_error": True, "total_cost_usd": 0, "usage": counts(0)}, exit_code)
    assert (run.status, run.stop_reason, run.errors) == ("budget_exhausted", "errors", 3)
    assert run.used == Amount(model_calls=3)


def test_a_program_that_is_not_there_is_asked_for_once(tmp_path: Path) -> None:
    run = asking({}, argv=[str(tmp_path / "nothing")])
    assert (run.status, run.stop_reason) == ("failed", "agent_unusable")
    assert "Let argv begin with a program that can be started there." in run.reason
    assert run.used.model_calls == 1
