"""A loop contract to start from: add a bounded retry setting to a feature (S1-17 to S1-19)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from loops.core.contract import ActionDecision, Evaluation, Judgment, LoopContext, LoopContract
from loops.core.effects import Effects
from loops.patterns.base import BuildInfo, StateModel, accepted


class RetryFeatureArguments(BaseModel):
    """What the evaluator accepts."""

    model_config = ConfigDict(extra="forbid")

    accept_up_to: int = 3


class RetryFeatureState(StateModel):
    """The feature as the loop has changed it so far."""

    retry_limit: int | None = None
    validation_added: bool = False


def retry_feature(
    arguments: dict[str, Any], info: BuildInfo, _effects: Effects
) -> LoopContract[RetryFeatureState]:
    """A deterministic loop that needs two attempts and no effects."""
    bound = RetryFeatureArguments.model_validate(arguments).accept_up_to

    def evaluate(state: RetryFeatureState) -> Evaluation:
        if state.retry_limit is None or state.retry_limit > bound:
            return Evaluation(
                judgment=Judgment.CONTINUE, feedback=f"the retry limit must be at most {bound}"
            )
        if not state.validation_added:
            return Evaluation(judgment=Judgment.CONTINUE, feedback="validation is missing")
        return Evaluation(judgment=Judgment.SUCCESS)

    return LoopContract(
        local_aim=info.local_aim,
        initial_state=RetryFeatureState(),
        action_policy=_change_feature,
        evaluator=evaluate,
        budget=info.budget,
        stopping_condition=accepted,
        authority_scope=info.scope(frozenset({"edit_implementation", "edit_tests"})),
    )


def _change_feature(context: LoopContext[RetryFeatureState]) -> ActionDecision[RetryFeatureState]:
    if context.attempt == 1:
        first = RetryFeatureState(retry_limit=5)
        return ActionDecision(action="edit_implementation", state=first)
    better = RetryFeatureState(retry_limit=3, validation_added=True)
    return ActionDecision(action="edit_implementation", state=better)
