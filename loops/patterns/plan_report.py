"""The result of a plan-execute-review run: complete, or what remains (S2-38)."""

from __future__ import annotations

import json
from typing import Any

from loops.core.plan_states import PlanStatus
from loops.core.tooling import ToolStatus
from loops.patterns.base import ResultFile
from loops.patterns.plan_state import State


def report_file(state: State) -> ResultFile | None:
    """The report as a file, once there is a plan or a reason to stop."""
    if state.plan is None and not state.stop:
        return None
    text = json.dumps(report(state), indent=2, ensure_ascii=False)
    return ResultFile(name="report.json", content=f"{text}\n")


def report(state: State) -> dict[str, Any]:
    """What was done with which evidence, and everything that is still open."""
    return {
        "complete": state.status is PlanStatus.SUCCEEDED,
        "status": state.status.value,
        "stopped": _stopped(state),
        "goal": state.plan.goal if state.plan else "",
        "revision": state.revision,
        "steps": [
            result.model_dump(mode="json", exclude_defaults=True) for result in state.results
        ],
        "checks": [one.model_dump(mode="json") for one in state.checked],
        "remains": list(remaining(state)),
    }


def _stopped(state: State) -> str:
    if state.why or state.status is PlanStatus.SUCCEEDED:
        return state.why
    return f"It stopped while {state.status.replace('_', ' ')}; the reason of the run says why."


def remaining(state: State) -> tuple[str, ...]:
    """One line for each thing that is not done, not met or not known."""
    if state.status is PlanStatus.SUCCEEDED:
        return ()
    steps = state.plan.steps if state.plan else ()
    by_id = {result.step_id: result.status for result in state.results}
    lines = [finding.line for finding in state.findings]
    lines += [
        f"Step {step.id} was not executed: {step.objective}"
        for step in steps
        if step.id not in by_id
    ]
    lines += [f"Step {id_} failed." for id_, status in by_id.items() if status is ToolStatus.FAILED]
    lines += [
        f"Nobody knows whether step {id_} happened."
        for id_, status in by_id.items()
        if status is ToolStatus.OUTCOME_UNKNOWN
    ]
    if not state.reviewed and not state.findings:
        lines += [f"{criterion}: not reviewed" for criterion in state.criteria]
    lines += [f"Unanswered: {question}" for question in state.questions]
    return tuple(lines) or (() if steps else state.problems or ("There is no valid plan.",))
