"""What each phase is told, and nothing else (S2-40): pure functions, pinned by snapshots."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from loops.core.plan import PlanStep
from loops.core.tooling import ToolInfo
from loops.core.wrapping import DATA_RULE, ESCAPE_RULE, Tag
from loops.patterns.base import BuildInfo
from loops.patterns.findings import as_feedback
from loops.patterns.plan_answers import PARAMETERS_SHAPE, PLAN_SHAPE, REVIEW_SHAPE
from loops.patterns.plan_state import Evidence, State

_RULES = f"{DATA_RULE} {ESCAPE_RULE}"
_PLANNING = (
    " Take few steps. Each names at most one of the given tools, and none if it only writes text."
    " Acceptance criteria say what can be observed. List only assumptions that would change the"
    " result: a person is asked about each. Say as risk the worst that the step can do."
    f" Answer with one JSON object and nothing else: {PLAN_SHAPE}. {_RULES}"
)
PLANNER = f"You propose a plan; code validates it and other parts carry it out.{_PLANNING}"
REVISER = (
    "A review found a plan's result incomplete. Propose only the steps that correct what is open:"
    " their acceptance criteria are copied from the open ones, word by word. Steps that are done"
    f" stay; give new steps new ids.{_PLANNING}"
)
EXECUTOR_TOOL = (
    "You choose the parameters for one use of one tool, so that the given step is done. You do"
    f" nothing else. Answer with one JSON object and nothing else: {PARAMETERS_SHAPE}. {_RULES}"
)
EXECUTOR_TEXT = (
    f"You carry out one step of a plan by writing its result, and nothing else. {_RULES}"
)
REVIEWER = (
    "You check a result against acceptance criteria, by the given evidence alone. Give exactly one"
    " finding for each criterion, copied word by word. A criterion is met only if you can name the"
    " ids of the evidence that shows it. Say not_verifiable when the evidence shows neither, and"
    " blocked only when a person must answer something first. For what is not met, say as"
    " correction what has to change."
    f" Answer with one JSON object and nothing else: {REVIEW_SHAPE}. {_RULES}"
)


def planner_packet(
    info: BuildInfo,
    goal: str,
    state: State,
    *,
    constraints: str,
    remaining_steps: int,
    tools: Mapping[str, ToolInfo],
    available: Collection[str],
) -> str:
    """Goal, current state, constraints, relevant evidence."""
    return "\n\n".join(
        [
            info.wrap(Tag.TASK, goal),
            f"State: {state.status}, revision {state.revision}.",
            _constraints(info, constraints, remaining_steps, tools, available),
            *_settled(info, state),
            *_said(info, state),
            *_problems(info, state),
            *_evidence(info, state.evidence),
        ]
    )


def executor_packet(
    info: BuildInfo, step: PlanStep, handle: ToolInfo | None, inputs: Sequence[Evidence]
) -> str:
    """One validated step, its dependencies resolved, and the authorized capability handle."""
    parts = [info.wrap(Tag.TASK, _json(_step(step)))]
    if handle is not None:
        parts.append(f"The tool: {_json(_handle(handle))}")
    return "\n\n".join([*parts, *_evidence(info, inputs)])


def reviewer_packet(
    info: BuildInfo,
    goal: str,
    criteria: Sequence[str],
    artifact: str,
    manifest: Sequence[Evidence],
) -> str:
    """Goal, criteria, artifact and evidence manifest."""
    parts = [
        info.wrap(Tag.TASK, goal),
        "The criteria:",
        info.wrap(Tag.FEEDBACK, as_feedback(criteria)),
    ]
    if artifact:
        parts += ["The artifact:", info.wrap(Tag.CODE, artifact)]
    return "\n\n".join([*parts, *_evidence(info, manifest)])


def reviser_packet(
    info: BuildInfo,
    state: State,
    *,
    scope: Sequence[str],
    remaining_steps: int,
    tools: Mapping[str, ToolInfo],
    available: Collection[str],
) -> str:
    """The failed criteria with their corrections, and what the correction may use."""
    lines = [finding.line for finding in state.findings]
    done = ", ".join(sorted(state.ended)) or "none"
    return "\n\n".join(
        [
            "The open criteria:",
            info.wrap(Tag.FEEDBACK, as_feedback(scope)),
            *(
                ["What the review found:", info.wrap(Tag.FEEDBACK, as_feedback(lines))]
                * bool(lines)
            ),
            *_said(info, state),
            *_problems(info, state),
            f"Ids that are taken: {done}.",
            _constraints(info, "", remaining_steps, tools, available),
        ]
    )


def _constraints(
    info: BuildInfo,
    constraints: str,
    remaining_steps: int,
    tools: Mapping[str, ToolInfo],
    available: Collection[str],
) -> str:
    lines = [f"At most {remaining_steps} steps are left. The tools:"]
    usable = [tools[name] for name in sorted(tools) if name in available]
    lines += [f"- {tool.name} ({tool.risk}): {tool.about}" for tool in usable]
    if not usable:
        lines.append("- none")
    if constraints.strip():
        lines += ["Keep to this:", info.wrap(Tag.TASK, constraints.strip())]
    return "\n".join(lines)


def _settled(info: BuildInfo, state: State) -> list[str]:
    if not state.settled:
        return []
    lines = as_feedback(f"{one.question} Answer: {one.answer}" for one in state.settled)
    return ["What a person has settled:", info.wrap(Tag.FEEDBACK, lines)]


def _said(info: BuildInfo, state: State) -> list[str]:
    return ["A person says:", info.wrap(Tag.FEEDBACK, state.words)] if state.words else []


def _problems(info: BuildInfo, state: State) -> list[str]:
    if not state.problems:
        return []
    listed = info.wrap(Tag.FEEDBACK, as_feedback(state.problems))
    return ["Your last plan broke these rules:", listed]


def _evidence(info: BuildInfo, found: Iterable[Evidence]) -> list[str]:
    entries = [f"[{one.id}] {one.source} {one.digest}\n{one.summary}".strip() for one in found]
    return ["The evidence:", info.wrap(Tag.OUTPUT, "\n\n".join(entries))] if entries else []


def _step(step: PlanStep) -> dict[str, Any]:
    return {
        "id": step.id,
        "objective": step.objective,
        "acceptanceCriteria": list(step.acceptance_criteria),
        "expectedEvidence": list(step.expected_evidence),
    }


def _handle(handle: ToolInfo) -> dict[str, Any]:
    return {"name": handle.name, "about": handle.about, "schema": handle.schema}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True)
