"""A planner proposes, code validates, tools execute, a reviewer checks the evidence (S2).

One attempt is one turn of the state machine: one plan with its validation, one ready step, or one
review. Limits, approvals and moves are code; a model only fills in proposals and findings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import Field

from loops.core.contract import (
    ActionDecision,
    Ask,
    Escalation,
    Evaluation,
    Judgment,
    LoopContext,
    LoopContract,
)
from loops.core.effects import Effects
from loops.core.errors import ContractError, FormatFault
from loops.core.lifecycle import SENTENCES, StopReason
from loops.core.limits import Limits
from loops.core.plan_review import InvalidPlanReview
from loops.core.plan_states import PlanStatus
from loops.core.tooling import ToolGrant
from loops.patterns.base import (
    Answer,
    BuildInfo,
    CannotGoOn,
    JsonObject,
    Needs,
    Pattern,
    SpecModel,
    accepted,
)
from loops.patterns.commands import named_checks
from loops.patterns.plan_citations import HTTP_GET
from loops.patterns.plan_execute import ROLES, Executor
from loops.patterns.plan_report import remaining, report_file
from loops.patterns.plan_state import Moves, State, shown_action
from loops.patterns.plan_turns import Turns
from loops.patterns.stalls import (
    IdleAttempts,
    Returns,
    SameActions,
    SameFindings,
    thresholds_of,
)
from loops.patterns.watching import (
    USUAL_MAX_POLLS,
    USUAL_POLL_SECONDS,
    Checks,
    MaxPolls,
    NotReady,
    PollSeconds,
)

MAX_PLAN_ITERATIONS = 40
ACTIONS = frozenset({"advance_plan"})
WORKSPACE_TOOLS = ("read_file", "list_files", "search", "edit_file", "write_file", "run_check")


class Spec(SpecModel):
    """The goal, and what may be done to reach it."""

    goal: str = Field(
        min_length=1,
        pattern=r"\S",
        title="Goal",
        description="What is to be reached. Planner and reviewer both get exactly this text.",
        json_schema_extra={"multiline": True},
    )
    constraints: str = Field(
        default="",
        title="Constraints",
        description="What the planner has to keep to.",
        json_schema_extra={"multiline": True},
    )
    checks: list[str] = Field(
        default_factory=list,
        title="Checks",
        description="One command per line. All run before each review; a red one outranks it.",
        json_schema_extra={"multiline": True},
    )
    tools: list[str] = Field(
        default_factory=lambda: list(WORKSPACE_TOOLS),
        title="Tools",
        description="One name per line. A plan that names any other tool is refused.",
        json_schema_extra={"multiline": True},
    )
    max_revisions: int = Field(
        default=3, ge=0, le=50, title="Revisions", description="How often a result is corrected."
    )
    max_steps: int = Field(
        default=20, ge=1, le=200, title="Plan steps", description="Of all revisions together."
    )
    parallel_reads: int = Field(
        default=1,
        ge=1,
        le=8,
        title="Reads at once",
        description="Independent steps that only read may run side by side; 1 for one by one.",
    )
    cited_sources: bool = Field(
        default=False,
        title="Check cited sources",
        description="Every link in the result must open and hold the words quoted with it.",
    )
    poll_seconds: PollSeconds = USUAL_POLL_SECONDS
    max_polls: MaxPolls = USUAL_MAX_POLLS
    same_finding_limit: SameFindings = 2
    same_action_limit: SameActions = 3
    idle_limit: IdleAttempts = 2
    return_limit: Returns = 2


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """The two halves of one attempt."""

    turns: Turns
    executor: Executor
    moves: Moves
    info: BuildInfo

    def act(self, context: LoopContext[State]) -> ActionDecision[State]:
        """One turn. What an agent cannot give, a person is asked for."""
        try:
            return ActionDecision(action="advance_plan", state=self._turn(context))
        except NotReady as wait:
            state = context.state.but(**wait.kept)
            return ActionDecision(action="advance_plan", state=state, not_yet=wait.later)
        except CannotGoOn as fault:
            return _stop(fault.cause, str(fault))
        except InvalidPlanReview as fault:
            cause = StopReason.REVIEWER_INVALID_VERDICT
            return _stop(cause, f"{SENTENCES[cause]} {fault}")
        except FormatFault as fault:
            cause = StopReason.AGENT_UNUSABLE_ANSWER
            return _stop(cause, f"{SENTENCES[cause]} {fault}")

    def _turn(self, context: LoopContext[State]) -> State:
        state = context.state
        if state.ticket and state.status in _WAITS:
            answer = self.info.answer
            if answer is None or answer.shown.get("ticket") != state.ticket:
                return state
            return _WAITS[state.status](self, state, answer)
        if context.feedback:
            state = state.but(words=context.feedback)
        turns: dict[PlanStatus, Callable[[State], State]] = {
            PlanStatus.PLANNING: self.turns.plan,
            PlanStatus.EXECUTING: self.executor.run,
            PlanStatus.REVIEWING: self.turns.review,
            PlanStatus.REVISING: self.turns.revise,
        }
        return turns[state.status](state)

    def _on_approval(self, state: State, answer: Answer) -> State:
        if answer.decision == "approve":
            return self.executor.approved(state, answer)
        return self.moves.revise(state, answer.words)

    def _on_input(self, state: State, answer: Answer) -> State:
        if state.action is None:
            return self.turns.answered(state, answer)
        happened = answer.decision == "happened"
        return self.executor.reconciled(
            state, happened=happened, source="a person", words=answer.words
        )

    def _on_stop(self, state: State, answer: Answer) -> State:
        return self.moves.reopened(state, answer.words)


_WAITS: dict[PlanStatus, Callable[[_Machine, State, Answer], State]] = {
    PlanStatus.AWAITING_APPROVAL: _Machine._on_approval,
    PlanStatus.AWAITING_INPUT: _Machine._on_input,
    PlanStatus.FAILED: _Machine._on_stop,
}


def _stop(cause: StopReason, reason: str) -> ActionDecision[State]:
    return ActionDecision(action="advance_plan", escalation=Escalation(cause=cause, reason=reason))


def judge(state: State) -> Evaluation:
    """What a state means for the run. No model is asked here."""
    label = state.status.replace("_", " ")
    ask: tuple[str, ...]
    match state.status:
        case PlanStatus.SUCCEEDED:
            return Evaluation(judgment=Judgment.SUCCESS, label="accepted")
        case PlanStatus.AWAITING_APPROVAL:
            cause, reason, ask = StopReason.APPROVAL, "", ("approve", "reject", "close")
        case PlanStatus.AWAITING_INPUT if state.action is not None:
            cause, reason = StopReason.OUTCOME_UNKNOWN, f"Step {state.action.step_id}."
            ask = ("happened", "not_happened", "close")
        case PlanStatus.AWAITING_INPUT:
            cause, reason, ask = StopReason.INPUT, "", ("answer", "close")
        case PlanStatus.FAILED:
            return Evaluation(
                judgment=Judgment.ESCALATE,
                cause=state.stop,
                feedback=state.why,
                reasons=remaining(state),
                label=label,
                ask=Ask(shown={"ticket": state.ticket}),
            )
        case _:
            return Evaluation(judgment=Judgment.CONTINUE, label=label)
    return Evaluation(
        judgment=Judgment.ESCALATE,
        cause=cause,
        feedback=f"{SENTENCES[cause]} {reason}".strip(),
        label=label,
        ask=Ask(decisions=ask, shown=_shown(state)),
        costs_round=False,
    )


def _shown(state: State) -> dict[str, object]:
    shown: dict[str, object] = {"ticket": state.ticket, "questions": list(state.questions)}
    if state.action is not None:
        objective = state.step(state.action.step_id).objective
        shown["action"] = {**shown_action(state.action), "objective": objective}
    return shown


def build(spec: Spec, state: State, effects: Effects, info: BuildInfo) -> LoopContract[State]:
    """The contract of one run."""
    moves = Moves(
        max_revisions=spec.max_revisions,
        max_steps=spec.max_steps,
        thresholds=thresholds_of(spec),
    )
    checks = Checks(
        commands=effects.commands,
        info=info,
        checks=list(named_checks(spec.checks).items()),
        poll_seconds=spec.poll_seconds,
        max_polls=spec.max_polls,
    )
    turns = Turns(
        goal=spec.goal,
        constraints=spec.constraints,
        checks=checks,
        effects=effects,
        info=info,
        moves=moves,
        cited_sources=spec.cited_sources,
    )
    executor = Executor(effects=effects, info=info, moves=moves, parallel_reads=spec.parallel_reads)
    machine = _Machine(turns=turns, executor=executor, moves=moves, info=info)
    return LoopContract(
        local_aim=info.local_aim,
        initial_state=state,
        action_policy=machine.act,
        evaluator=judge,
        budget=info.budget,
        stopping_condition=accepted,
        authority_scope=info.scope(ACTIONS),
    )


def _load_state(_spec: Spec, stored: JsonObject) -> State:
    """A state of an earlier version has `seen`: the trail tells that now."""
    return State.model_validate({key: stored[key] for key in stored if key != "seen"})


def _initial(spec: Spec) -> State:
    if spec.cited_sources and HTTP_GET not in spec.tools:
        raise ContractError(f"cited_sources opens links with {HTTP_GET}: name it in tools")
    return State()


PATTERN = Pattern(
    name="plan_execute_review",
    summary="A planner proposes steps, code validates and runs them, a reviewer checks evidence.",
    stops_when="The reviewer accepts every criterion by its evidence and no check is red.",
    spec=Spec,
    initial=_initial,
    build=build,
    load_state=_load_state,
    needs=lambda spec: Needs(roles=frozenset({"planner", "reviewer"}), workspace=bool(spec.checks)),
    roles=ROLES,
    uses_workspace="optional",
    allowed_actions=ACTIONS,
    default_limits=Limits(
        iterations=MAX_PLAN_ITERATIONS,
        model_calls=60,
        tool_calls=60,
        tokens=2_000_000,
        active_seconds=3_600,
    ),
    default_on_limit="gate",
    asks=True,
    tools=lambda spec: ToolGrant(names=tuple(spec.tools), checks=named_checks(spec.checks)),
    result=report_file,
    example={"goal": "Write down in NOTES.md what this repository is for."},
)
