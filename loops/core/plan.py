"""A plan as data, and the rules that it must keep before anything of it runs (S2-11 to S2-19).

Passing proves shape and local invariants only, never that the plan is right (S2-19).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

_VAGUE = re.compile(
    r"(?:\b(?:a|all|and|are|be|correct|correctly|done|everything|fine|good|great|is|it|nice|ok|okay"
    r"|perfect|properly|right|should|the|well|will|work|working|works)\b|\W)*"
)


class Risk(StrEnum):
    """What an action can do to the world, from the mildest on."""

    READ = "read"
    REVERSIBLE_WRITE = "reversible_write"
    HIGH_IMPACT = "high_impact"


@dataclass(frozen=True, kw_only=True)
class PlanStep:
    """One proposed step (S2-11)."""

    id: str
    objective: str
    depends_on: tuple[str, ...] = ()
    tool: str | None = None
    acceptance_criteria: tuple[str, ...] = ()
    expected_evidence: tuple[str, ...] = ()
    risk: Risk = Risk.READ


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A proposed dependency graph with acceptance criteria (S2-11)."""

    goal: str
    assumptions: tuple[str, ...] = ()
    steps: tuple[PlanStep, ...] = ()

    @property
    def criteria(self) -> tuple[str, ...]:
        """Every acceptance criterion once, in the order of the steps."""
        found = (one for step in self.steps for one in step.acceptance_criteria)
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, kw_only=True)
class PlanProblem:
    """One rule that a plan breaks.

    `code` is one of no_steps, duplicate_id, missing_dependency, cycle, over_budget,
    tool_unavailable, tool_unauthorized, tool_missing, vague_criterion,
    out_of_scope.
    """

    code: str
    message: str
    path: tuple[str, ...] = ()
    """The ids of a cycle, the first one again at its end."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a plan is held against: facts that no model supplies."""

    remaining_steps: int
    available: Collection[str]
    """Tools that can be used now."""
    authorized: Mapping[str, Risk]
    """Tools that this task may use, and what each can do."""
    failed: Collection[str] = ()
    """Ids of steps that have ended without being done: nothing may wait for them."""
    scope: Collection[str] | None = None
    """The only criteria that a correction may work on; None for a first plan."""


def problems_of(plan: Plan, ground: Ground, *, after: Sequence[PlanStep] = ()) -> list[PlanProblem]:
    """Everything that is wrong with the plan, in the order of the rules; empty when it may run.

    `after` are steps that have ended: its ids are taken, and new steps may depend on them.
    """
    whole = replace(plan, steps=(*after, *plan.steps))
    return [
        *_ids(whole, ground.failed),
        *_cycles(whole),
        *_size(plan, ground),
        *(problem for step in plan.steps for problem in _tool(step, ground)),
        *(problem for step in plan.steps for problem in _criteria(step, ground.scope)),
    ]


def risk_of(step: PlanStep, risks: Mapping[str, Risk]) -> Risk:
    """The higher of what the plan says and what its tool can do; an unknown tool can do all."""
    if step.tool is None:
        return step.risk
    order = list(Risk)
    return max(step.risk, risks.get(step.tool, Risk.HIGH_IMPACT), key=order.index)


def ready_steps(plan: Plan, completed: Collection[str], ended: Collection[str]) -> list[PlanStep]:
    """Steps that have not ended and whose dependencies are all completed, in the plan's order."""
    return [
        step
        for step in plan.steps
        if step.id not in ended and all(one in completed for one in step.depends_on)
    ]


def normalised(text: str) -> str:
    """The text without case, layout and quotes, to tell whether two say the same."""
    return " ".join(
        re.sub("[`'\"\u2018\u2019\u201c\u201d]|[.,;:!?]+(?=\\s|$)", "", text).casefold().split()
    )


def open_assumptions(plan: Plan, settled: Collection[str]) -> tuple[str, ...]:
    """Assumptions that no person has seen yet: each of them would change the result (S2-18)."""
    known = {normalised(one) for one in settled}
    return tuple(one for one in plan.assumptions if normalised(one) not in known)


def _ids(plan: Plan, failed: Collection[str]) -> list[PlanProblem]:
    times = Counter(step.id for step in plan.steps)
    found = [
        PlanProblem(code="duplicate_id", message=f"The id {id_!r} stands at {count} steps.")
        for id_, count in times.items()
        if count > 1
    ]
    for step in plan.steps:
        for one in step.depends_on:
            if one not in times or one in failed:
                why = "which was not done" if one in failed else "which is no step of the plan"
                message = f"Step {step.id!r} depends on {one!r}, {why}."
                found.append(PlanProblem(code="missing_dependency", message=message))
    return found


def _cycles(plan: Plan) -> list[PlanProblem]:
    """Each cycle that a walk in the plan's order meets, once."""
    after = {step.id: step.depends_on for step in plan.steps}
    done: set[str] = set()
    found: list[PlanProblem] = []
    for start in after:
        trail: list[str] = []
        todo = [(start, False)]
        while todo:
            id_, leaving = todo.pop()
            if leaving:
                done.add(trail.pop())
            elif id_ in trail:
                path = (*trail[trail.index(id_) :], id_)
                message = f"The steps wait for each other: {' -> '.join(path)}."
                found.append(PlanProblem(code="cycle", message=message, path=path))
            elif id_ not in done and id_ in after:
                trail.append(id_)
                todo.append((id_, True))
                todo += [(one, False) for one in reversed(after[id_])]
    return found


def _size(plan: Plan, ground: Ground) -> list[PlanProblem]:
    if not plan.steps:
        return [PlanProblem(code="no_steps", message="The plan has no step.")]
    if len(plan.steps) <= ground.remaining_steps:
        return []
    message = f"The plan has {len(plan.steps)} steps, {ground.remaining_steps} are left."
    return [PlanProblem(code="over_budget", message=message)]


def _tool(step: PlanStep, ground: Ground) -> list[PlanProblem]:
    name, found = step.tool, []
    if name is None:
        if step.risk is Risk.HIGH_IMPACT:
            message = f"Step {step.id!r} is of high impact and must name the tool that it uses."
            found.append(PlanProblem(code="tool_missing", message=message))
        return found
    if name not in ground.authorized:
        message = f"Step {step.id!r} names the tool {name!r}, which this task may not use."
        found.append(PlanProblem(code="tool_unauthorized", message=message))
    if name not in ground.available:
        message = f"Step {step.id!r} names the tool {name!r}, which is not available here."
        found.append(PlanProblem(code="tool_unavailable", message=message))
    return found


def _criteria(step: PlanStep, scope: Collection[str] | None) -> list[PlanProblem]:
    if not step.acceptance_criteria:
        message = f"Step {step.id!r} has no acceptance criterion."
        return [PlanProblem(code="vague_criterion", message=message)]
    found = []
    for one in step.acceptance_criteria:
        if _VAGUE.fullmatch(one.casefold()):
            message = f"Step {step.id!r}: {one!r} names nothing that can be observed."
            found.append(PlanProblem(code="vague_criterion", message=message))
        elif scope is not None and one not in scope:
            message = f"Step {step.id!r}: {one!r} is none of the criteria to correct."
            found.append(PlanProblem(code="out_of_scope", message=message))
    return found
