"""What a plan-execute-review run hands from attempt to attempt, and how it may change."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from loops.core.lifecycle import SENTENCES, StopReason
from loops.core.plan import Plan, PlanStep
from loops.core.plan_review import Finding
from loops.core.plan_states import PlanLimits, PlanStatus, RunState, check_plan_move
from loops.core.progress import Mark, Thresholds
from loops.core.tooling import Figures, ToolStatus, ToolUse
from loops.patterns.base import StateModel
from loops.patterns.watching import Watching


class Evidence(StateModel):
    """One thing that was observed. Its id is made here, never by a model (S2-29)."""

    id: str
    source: str
    digest: str = ""
    summary: str

    @property
    def number(self) -> int:
        """Its place among all that was observed, from 1."""
        return int(self.id.removeprefix("e"))


class StepResult(StateModel):
    """How one plan step ended (S2-22)."""

    step_id: str
    status: ToolStatus
    evidence: tuple[Evidence, ...] = ()
    tool_call_id: str | None = None
    error_code: str | None = None
    text: str = ""
    """What a step without a tool produced."""


class Action(StateModel):
    """One use of a tool, as it is proposed to a person or as its outcome is in doubt."""

    step_id: str
    key: str
    tool: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    sha256: str

    @property
    def use(self) -> ToolUse:
        """The same for the tools."""
        return ToolUse(key=self.key, tool=self.tool, parameters=self.parameters)


class Settled(StateModel):
    """A question that a person has answered."""

    question: str
    answer: str


class State(Watching):
    """The run between two attempts."""

    status: PlanStatus = PlanStatus.PLANNING
    revision: int = 0
    steps: int = 0
    """Plan steps that were executed, of all revisions."""
    grants: int = 0
    """How often a person let it go on after a stop: each time with the spec's amounts once more."""
    plan: Plan | None = None
    criteria: tuple[str, ...] = ()
    """Of the first valid plan; no revision takes one away."""
    problems: tuple[str, ...] = ()
    rejections: int = 0
    """Plans in a row that broke a rule."""
    results: tuple[StepResult, ...] = ()
    checked: tuple[Evidence, ...] = ()
    """What the checks said before the last review."""
    observed: int = 0
    """Pieces of evidence so far."""
    findings: tuple[Finding, ...] = ()
    """What the last review left open."""
    trail: tuple[Mark, ...] = ()
    """Fingerprints of the reviews and of what was there to review, to see a standstill."""
    uses: tuple[Mark, ...] = ()
    """The same of the steps that were executed."""
    reviewed: int = 0
    """Pieces of evidence that the last review had."""
    settled: tuple[Settled, ...] = ()
    words: str = ""
    """What a person said, for the next planner or reviser."""
    questions: tuple[str, ...] = ()
    action: Action | None = None
    ticket: int = 0
    """Number of the last question to a person: an answer to an earlier one answers nothing."""
    stop: str = ""
    why: str = ""

    @property
    def completed(self) -> frozenset[str]:
        """Ids of the steps that are done."""
        done = ToolStatus.COMPLETED
        return frozenset(one.step_id for one in self.results if one.status is done)

    @property
    def ended(self) -> frozenset[str]:
        """Ids of the steps that will not be executed again."""
        return frozenset(one.step_id for one in self.results)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Everything observed, in order."""
        return (*(one for result in self.results for one in result.evidence), *self.checked)

    @property
    def shown(self) -> frozenset[str]:
        """Ids of the evidence that completed steps left."""
        done = ToolStatus.COMPLETED
        return frozenset(
            one.id for result in self.results if result.status is done for one in result.evidence
        )

    @property
    def scope(self) -> tuple[str, ...]:
        """The criteria that a correction may work on: what is open, or whatever is not done."""
        if self.findings:
            return tuple(finding.criterion for finding in self.findings)
        steps = self.plan.steps if self.plan else ()
        undone = [
            one
            for step in steps
            if step.id not in self.completed
            for one in step.acceptance_criteria
        ]
        return tuple(dict.fromkeys(undone)) or self.criteria

    def step(self, id_: str) -> PlanStep:
        """The step of the plan with this id."""
        assert self.plan is not None  # noqa: S101 - there is no step without a plan
        return next(step for step in self.plan.steps if step.id == id_)

    def but(self, **changes: Any) -> State:
        """The same with these changes; a status changes by `Moves` alone."""
        return self.model_copy(update=changes)


@dataclass(frozen=True, kw_only=True)
class Moves:
    """The only door through which a status changes."""

    max_revisions: int
    max_steps: int
    thresholds: Thresholds = field(default_factory=Thresholds)

    def view(self, state: State, figures: Figures | None = None) -> RunState:
        """The run as the rules see it (S2-6)."""
        times = state.grants + 1
        limits = PlanLimits(
            max_revisions=self.max_revisions * times, max_steps=self.max_steps * times
        )
        used: dict[str, Any] = {"model_calls": 0, "tool_calls": 0, "consumed_tokens": 0}
        if figures is not None:
            caps = figures.limits
            limits = PlanLimits(
                max_revisions=limits.max_revisions,
                max_steps=limits.max_steps,
                max_model_calls=caps.model_calls,
                max_tool_calls=caps.tool_calls,
                max_total_tokens=caps.tokens,
                deadline_at=figures.deadline_at,
            )
            used = {
                "model_calls": figures.used.model_calls,
                "tool_calls": figures.used.tool_calls,
                "consumed_tokens": figures.used.tokens,
            }
        return RunState(
            id=figures.run_id if figures else "",
            status=state.status,
            revision=state.revision,
            steps=state.steps,
            limits=limits,
            **used,
        )

    def to(
        self, state: State, new: PlanStatus, *, proposed: str = "", approved: str = "", **more: Any
    ) -> State:
        """The state in its new status, or an error of `check_plan_move`."""
        check_plan_move(self.view(state), new, proposed=proposed, approved=approved)
        return state.but(status=new, **more)

    def fail(self, state: State, stop: StopReason, why: str = "") -> State:
        """Stop, with the reason and a question number of its own (S2-38)."""
        said = f"{SENTENCES[stop]} {why}".strip()
        return self.to(state, PlanStatus.FAILED, stop=stop.value, why=said, ticket=state.ticket + 1)

    def revise(self, state: State, words: str) -> State:
        """Because a person said so. It costs a revision like any other."""
        if state.revision >= self.view(state).limits.max_revisions:
            return self.fail(state, StopReason.REVISIONS)
        return self.to(
            state, PlanStatus.REVISING, revision=state.revision + 1, words=words, action=None
        )

    def reopened(self, state: State, words: str) -> State:
        """After a stop a person, and nobody else, may let it go on, with the amounts once more.

        That is no move of the table: no model response leads here (S2-10).
        """
        again = PlanStatus.REVISING if state.criteria else PlanStatus.PLANNING
        return state.but(
            status=again,
            grants=state.grants + 1,
            revision=state.revision + 1,
            rejections=0,
            trail=(),
            uses=(),
            words=words,
            action=None,
            stop="",
            why="",
        )


def observed(state: State, sources: list[tuple[str, str, str]]) -> tuple[tuple[Evidence, ...], int]:
    """Evidence for these sources, digests and summaries, and the new count."""
    found = tuple(
        Evidence(id=f"e{number}", source=source, digest=digest, summary=summary)
        for number, (source, digest, summary) in enumerate(sources, state.observed + 1)
    )
    return found, state.observed + len(found)


def text_digest(text: str) -> str:
    """The digest under which an answer is stored."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def shown_action(action: Action) -> Mapping[str, Any]:
    """What a person is shown of an action: exactly what would run."""
    return {
        "step": action.step_id,
        "tool": action.tool,
        "parameters": action.parameters,
        "sha256": action.sha256,
    }
