"""Carries out ready steps, and nothing of high impact without a person (S2-20 to S2-26)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loops.core.effects import Agents, Effects, Message
from loops.core.lifecycle import StopReason
from loops.core.plan import PlanStep, Risk, ready_steps, risk_of
from loops.core.plan_states import PlanStatus
from loops.core.progress import Mark, exact, noted, stall
from loops.core.text import tail
from loops.core.tooling import ToolOutcome, ToolStatus, action_digest
from loops.patterns.asking import ask_in_turn, fallback_of
from loops.patterns.base import Answer, BuildInfo
from loops.patterns.plan_answers import read_parameters
from loops.patterns.plan_packets import EXECUTOR_TEXT, EXECUTOR_TOOL, executor_packet
from loops.patterns.plan_state import Action, Moves, State, StepResult, observed, text_digest

SUMMARY_LINES, SUMMARY_CHARACTERS = 60, 4_000
_ROLES = {"planner": True, "executor": False, "reviewer": True, "reviser": False}
ROLES = _ROLES | dict.fromkeys(map(fallback_of, _ROLES), False)


def in_turn(agents: Agents, role: str) -> list[str]:
    """Who is asked: the role's own agent or else the planner; after a refusal, a fallback."""
    first = role if agents.has(role) else "planner"
    return list(dict.fromkeys([first, fallback_of(role), fallback_of(first)]))


@dataclass(frozen=True, kw_only=True)
class Executor:
    """The third of the four parts. Its model only fills in what a step leaves open."""

    effects: Effects
    info: BuildInfo
    moves: Moves
    parallel_reads: int = 1

    def run(self, state: State) -> State:
        """One ready step; or, where the task allows it, several that only read (S2-21).

        None after the same use of a tool with the same result, again and again (RC051).
        """
        if stalled := stall(state.uses, self.moves.thresholds):
            last = state.step(state.results[-1].step_id)
            why = f"{stalled.details} The last was {last.tool} in {last.id}."
            return self.moves.fail(state, stalled.cause, why)
        if state.steps >= self.moves.view(state).limits.max_steps:
            return self.moves.fail(state, StopReason.STEPS)
        ready = self._ready(state)
        if ready[0].tool is None:
            return self._write(state, ready[0])
        if stop := self._unusable(ready[0].tool):
            return self.moves.fail(state, stop, f"Step {ready[0].id} needs {ready[0].tool}.")
        batch = self._batch(state, ready)
        actions = [self._action(state, step, at) for at, step in enumerate(batch, 1)]
        if self._risk(ready[0]) is Risk.HIGH_IMPACT:
            return self._propose(state, actions[0])
        return self._use(state, actions[0]) if len(actions) == 1 else self._read(state, actions)

    def approved(self, state: State, answer: Answer) -> State:
        """Execute exactly what a person approved, or ask again (S2-9, S2-23).

        The parameters are those that were stored, and no model is asked for them again (RC132).
        """
        action = state.action
        assert action is not None  # noqa: S101 - nothing else leads to this status
        if stop := self._unusable(action.tool):
            return self.moves.fail(state, stop, f"Step {action.step_id} needs {action.tool}.")
        now = action_digest(action.tool, action.parameters)
        seen = str(answer.shown["action"]["sha256"])
        if not now == action.sha256 == seen:
            changed = action.model_copy(update={"sha256": now})
            return state.but(action=changed, ticket=state.ticket + 1)
        free = self.moves.to(state, PlanStatus.EXECUTING, proposed=now, approved=seen, action=None)
        return self._use(free, action, approved=seen)

    def reconciled(self, state: State, *, happened: bool, source: str, words: str = "") -> State:
        """Somebody who can know says what became of an ambiguous use (S2-26)."""
        action = state.action
        assert action is not None  # noqa: S101 - nothing else leads to this status
        known = tuple(one for one in state.results if one.step_id != action.step_id)
        before = tuple(one for one in state.results if one.step_id == action.step_id)
        if state.status is PlanStatus.AWAITING_INPUT:
            state = self.moves.to(state, PlanStatus.EXECUTING)
        state = state.but(results=known, action=None)
        if not happened:
            return self._onward(state)
        summary = f"It happened. {words}".strip()
        evidence, count = observed(state, [(source, "", summary)])
        evidence = (*(old for result in before for old in result.evidence), *evidence)
        result = StepResult(step_id=action.step_id, status=ToolStatus.COMPLETED, evidence=evidence)
        return self._onward(state.but(results=(*known, result), observed=count))

    def _ready(self, state: State) -> list[PlanStep]:
        assert state.plan is not None  # noqa: S101 - validated before
        return ready_steps(state.plan, state.completed, state.ended)

    def _risk(self, step: PlanStep) -> Risk:
        known = self.effects.tools.authorized()
        return risk_of(step, {name: tool.risk for name, tool in known.items()})

    def _unusable(self, tool: str) -> StopReason | None:
        """Looked at again right before use: what was there at validation may be gone (S2-35)."""
        if tool not in self.effects.tools.authorized():
            return StopReason.TOOL_UNAUTHORIZED
        if tool not in self.effects.tools.available():
            return StopReason.CAPABILITY_UNAVAILABLE
        return None

    def _batch(self, state: State, ready: list[PlanStep]) -> list[PlanStep]:
        left = self.moves.view(state).limits.max_steps - state.steps
        most = min(self.parallel_reads, left)
        reads = [
            step
            for step in ready
            if step.tool and self._risk(step) is Risk.READ and not self._unusable(step.tool)
        ]
        return reads[:most] if most > 1 and ready[0] in reads[:most] else ready[:1]

    def _action(self, state: State, step: PlanStep, at: int) -> Action:
        tool = str(step.tool)
        parameters = dict(self._parameters(state, step))
        return Action(
            step_id=step.id,
            key=f"{state.steps + at}-{step.id}",
            tool=tool,
            parameters=parameters,
            sha256=action_digest(tool, parameters),
        )

    def _parameters(self, state: State, step: PlanStep) -> Mapping[str, Any]:
        tools, name = self.effects.tools, str(step.tool)
        handle = tools.authorized()[name]
        if not handle.takes_parameters:
            return {}

        def read(text: str) -> Mapping[str, Any]:
            parameters = read_parameters(text)
            tools.check(name, parameters)
            return parameters

        packet = executor_packet(self.info, step, handle, self._inputs(state, step))
        return ask_in_turn(
            self.effects.agents,
            self._roles,
            [Message(role="user", content=packet)],
            system=EXECUTOR_TOOL,
            read=read,
        )

    def _write(self, state: State, step: PlanStep) -> State:
        packet = executor_packet(self.info, step, None, self._inputs(state, step))
        message = Message(role="user", content=packet)
        agents = self.effects.agents
        text = ask_in_turn(agents, self._roles, [message], system=EXECUTOR_TEXT, read=str)
        summary = tail(text, lines=SUMMARY_LINES, characters=SUMMARY_CHARACTERS)
        evidence, count = observed(state, [(f"text of {step.id}", text_digest(text), summary)])
        result = StepResult(
            step_id=step.id, status=ToolStatus.COMPLETED, evidence=evidence, text=text
        )
        return self._onward(
            state.but(
                results=(*state.results, result),
                observed=count,
                steps=state.steps + 1,
                uses=noted(state.uses, Mark()),
            )
        )

    @property
    def _roles(self) -> list[str]:
        return in_turn(self.effects.agents, "executor")

    def _inputs(self, state: State, step: PlanStep) -> list[Any]:
        wanted = set(step.depends_on)
        return [
            one for result in state.results if result.step_id in wanted for one in result.evidence
        ]

    def _propose(self, state: State, action: Action) -> State:
        return self.moves.to(
            state, PlanStatus.AWAITING_APPROVAL, action=action, ticket=state.ticket + 1
        )

    def _use(self, state: State, action: Action, *, approved: str = "") -> State:
        outcome = self.effects.tools.use(action.use, approved=approved)
        state = self._noted(state, action, outcome, by_a_person=bool(approved))
        if outcome.status is not ToolStatus.OUTCOME_UNKNOWN:
            return self._onward(state)
        state = state.but(action=action)
        happened = self.effects.tools.probe(action.use)
        if happened is None:
            return self.moves.to(state, PlanStatus.AWAITING_INPUT, ticket=state.ticket + 1)
        return self.reconciled(state, happened=happened, source=f"probe of {action.tool}")

    def _read(self, state: State, actions: Sequence[Action]) -> State:
        outcomes = self.effects.tools.use_together([action.use for action in actions])
        for action, outcome in zip(actions, outcomes, strict=True):
            state = self._noted(state, action, outcome)
        return self._onward(state)

    def _noted(
        self, state: State, action: Action, outcome: ToolOutcome, *, by_a_person: bool = False
    ) -> State:
        summary = tail(outcome.output, lines=SUMMARY_LINES, characters=SUMMARY_CHARACTERS)
        evidence, count = observed(state, [(action.tool, outcome.digest, summary)])
        result = StepResult(
            step_id=action.step_id,
            status=outcome.status,
            evidence=evidence,
            tool_call_id=outcome.call_id or None,
            error_code=outcome.error_code or None,
        )
        done = exact(f"{action.sha256} {outcome.status} {outcome.error_code} {outcome.digest}")
        # what a person approved is no mindless repetition, and waiting is none at all (RC053)
        mark = Mark(done="" if by_a_person else done)
        uses = state.uses if outcome.not_ready else noted(state.uses, mark)
        return state.but(
            results=(*state.results, result), observed=count, steps=state.steps + 1, uses=uses
        )

    def _onward(self, state: State) -> State:
        """What failed blocks what depends on it; the review says what that leaves open."""
        return state if self._ready(state) else self.moves.to(state, PlanStatus.REVIEWING)
