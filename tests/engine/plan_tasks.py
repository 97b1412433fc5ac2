"""Tasks of plan_execute_review for engine tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model

from loops import gates
from loops.models import Escalation, EscalationStatus, Run, Task
from tests.engine import scenes
from tests.loops.patterns.plan_scenes import finding, parameters, plan, review, step
from workers.intake import TaskRequest, accept

TOOLS = [
    "pay:high_impact=tests.engine.bank:pay",
    "transfer:reversible_write=tests.engine.bank:pay_and_tell",
]
ACCEPT = review("accept", finding("a", "met", "e1"))


def plan_task(
    planner: list[str],
    reviewer: list[str],
    *,
    executor: list[str] | None = None,
    repo: Path | None = None,
    spec: dict[str, Any] | None = None,
    **more: Any,
) -> Task:
    """A task whose agents follow these answers."""
    scripts = {"planner": planner, "reviewer": reviewer, "executor": executor or []}
    scripts |= {role: more.pop(role) for role in ("reviser",) if role in more}
    for role, answers in scripts.items():
        scenes.agent(f"p-{role}", role, *answers)
    limits = {"iterations": 20, **more.pop("limits", {})}
    return accept(
        TaskRequest(
            pattern="plan_execute_review",
            title="reach it",
            spec={"goal": "Reach it.", **(spec or {})},
            limits=limits,
            agents={role: f"p-{role}" for role in scripts},
            repo=str(repo) if repo else None,
            **more,
        ),
        project=scenes.project(),
        user=None,
    )


def paying(book: Path, amount: int = 12, tool: str = "pay", *, asked: int = 1, **more: Any) -> Task:
    """A plan of one step that pays, whose executor is asked so often."""
    return plan_task(
        [plan(step("a", tool=tool, risk="high_impact" if tool == "pay" else "reversible_write"))],
        [review("accept", finding("a", "met", f"e{asked}"))],
        executor=[parameters(book=str(book), amount=amount)] * asked,
        spec={"tools": ["pay", "transfer"]},
        **more,
    )


def open_item(run: Run) -> Escalation:
    """What waits for a person."""
    return Escalation.objects.get(run=run, status=EscalationStatus.OPEN)


def decide(run: Run, decision: str, words: str = "", **facts: Any) -> Escalation:
    """Ada decides."""
    item = open_item(run)
    ada, _ = get_user_model().objects.get_or_create(username="ada")
    return gates.decide(
        item.pk,
        decision=decision,
        user=ada,
        guidance=words,
        **{"digest": item.digest, **facts},
    )
