"""A contract of somebody's own, watched for a standstill without a word in its state or its code.

Its trail travels beside the state: in memory around it, in its stored form under a key of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import BaseModel, model_serializer

from loops.core.contract import ActionDecision, Evaluation, Judgment, LoopContext, LoopContract
from loops.core.effects import Workspace
from loops.core.progress import Mark, exact
from loops.patterns.base import JsonObject, StateModel
from loops.patterns.findings import as_feedback, finding_keys
from loops.patterns.stalls import Watcher, with_findings

KEY = "loopwarden"


class Traced(StateModel):
    """A state and its trail."""

    state: BaseModel
    trail: tuple[Mark, ...] = ()
    attempt: int = 0

    @model_serializer
    def _stored(self) -> JsonObject:
        """The fields of the state as they are, and one more."""
        stored: JsonObject = self.state.model_dump(mode="json")
        trail = [asdict(mark) for mark in self.trail]
        return {**stored, KEY: {"trail": trail, "attempt": self.attempt}}


def loaded(model: type[BaseModel], stored: JsonObject) -> Traced:
    """The state from its stored form; one without a trail begins one."""
    own = {name: value for name, value in stored.items() if name != KEY}
    return Traced(state=model.model_validate(own), **stored.get(KEY, {}))


def traced(
    contract: LoopContract[Any], *, start: Traced, watcher: Watcher, workspace: Workspace
) -> LoopContract[Traced]:
    """The same contract over traced states."""
    halves = _Traced(contract=contract, watcher=watcher, workspace=workspace)
    condition: Callable[[Evaluation], bool] = contract.stopping_condition
    return LoopContract(
        local_aim=contract.local_aim,
        initial_state=start,
        action_policy=halves.act,
        evaluator=halves.judge,
        budget=contract.budget,
        stopping_condition=condition,
        authority_scope=contract.authority_scope,
    )


@dataclass(frozen=True, kw_only=True)
class _Traced:
    """The two halves of one attempt."""

    contract: LoopContract[Any]
    watcher: Watcher
    workspace: Workspace

    def act(self, context: LoopContext[Traced]) -> ActionDecision[Traced]:
        """Act, and note what was done and what it changed. A wait leaves no mark (RC053)."""
        was = context.state
        before = self._print(was.state)
        own: LoopContext[Any] = LoopContext(
            local_aim=context.local_aim,
            state=was.state,
            attempt=context.attempt,
            feedback=context.feedback,
            authority_scope=context.authority_scope,
        )
        decision = self.contract.action_policy(own)
        if decision.state is None:
            return decision
        now = was.model_copy(update={"state": decision.state})
        if decision.not_yet is None:
            after = self._print(decision.state)
            done = exact(f"{decision.action}\n{after}")
            known = with_findings(self.watcher.known(was.trail), _findings(context.feedback))
            trail = self.watcher.noted(known, Mark(before=before, after=after, done=done))
            now = now.model_copy(update={"trail": trail, "attempt": context.attempt})
        return replace(decision, state=now)

    def judge(self, state: Traced) -> Evaluation:
        """The contract's own evaluation, unless it would go on without getting anywhere."""
        said = self.contract.evaluator(state.state)
        if said.judgment is not Judgment.CONTINUE:
            return said
        trail = with_findings(state.trail, _findings(said.feedback))
        return self.watcher.judged(said, trail, state.attempt, said.feedback)

    def _print(self, state: BaseModel) -> str:
        return exact(f"{state.model_dump_json()}\n{self.workspace.snapshot()}")


def _findings(feedback: str | None) -> tuple[str, ...]:
    """What an evaluator asks for: the items of its list, or all that it says."""
    said = (feedback or "").strip()
    return finding_keys(said) or (finding_keys(as_feedback([said])) if said else ())
