"""`LoopContract` and its one runner, `advance()` (S1).

A contract is a local aim with an evaluator, a budget and an authority scope. `advance` takes it
one attempt further and returns a decision as a value; `run_loop` does so until the end in one
process. A worker does the same one attempt per message, with the progress stored in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar

from loops.core.errors import ContractError

S = TypeVar("S")

BUDGET_REASON = "Loop budget exhausted before the stopping condition was met."


class Outcome(StrEnum):
    """How a loop ends: exactly these three (S1-14)."""

    SUCCESS = "success"
    BUDGET_EXHAUSTED = "budget_exhausted"
    ESCALATED = "escalated"


class Judgment(StrEnum):
    """What an evaluator may say of a state (S1-8)."""

    CONTINUE = "continue"
    SUCCESS = "success"
    ESCALATE = "escalate"


@dataclass(frozen=True, kw_only=True)
class AuthorityScope:
    """What the loop may do by itself, and who decides the rest (S1-11, S1-13)."""

    allowed_actions: frozenset[str]
    required_authority: str = "graph_governor"


@dataclass(frozen=True, kw_only=True)
class LoopContext(Generic[S]):
    """All that an action policy sees (S1-X5). It holds no way to raise the budget (S1-9)."""

    local_aim: str
    state: S
    attempt: int
    feedback: str | None
    authority_scope: AuthorityScope


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a person is asked, where the usual decisions do not fit."""

    decisions: tuple[str, ...] = ()
    """Words of the gate, such as `approve`; empty for the usual ones."""
    shown: Mapping[str, Any] = field(default_factory=dict)
    """What the decision is bound to; it must have a canonical form."""


@dataclass(frozen=True, kw_only=True)
class Escalation:
    """The loop stops and somebody else decides (S1-12). `cause` is a stable word for programs."""

    cause: str
    reason: str
    required_authority: str = ""
    proposal: str | None = None
    ask: Ask | None = None


@dataclass(frozen=True, kw_only=True)
class NotYet:
    """What the loop looks at is not ready: look again in so many seconds."""

    seconds: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class ActionDecision(Generic[S]):
    """What the policy did: an action by name and the state it led to.

    `goal_change` proposes another aim; `escalation` says that the policy itself cannot go on. Both
    stop the loop with the state from before (S1-X2). With `not_yet` nothing was attempted: the
    state is kept, and that is all.
    """

    action: str
    state: S | None = None
    goal_change: str | None = None
    escalation: Escalation | None = None
    not_yet: NotYet | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The evaluator's judgment of one state."""

    judgment: Judgment
    feedback: str = ""
    reasons: tuple[str, ...] = ()
    label: str = ""
    """A short word for people, such as `checks failed` or `changes requested`."""
    cause: str = ""
    """The stable word for why: with `escalate`, and with a success that is not a plain one."""
    pause: bool = False
    """A person looks at this before the next attempt (S4-14). `run_loop` just goes on."""
    ask: Ask | None = None
    """With `escalate`: what the person is asked."""
    costs_round: bool = True
    """False when there was no verdict to count: a refusal, a reviewer without one (S0-9)."""


@dataclass(frozen=True, kw_only=True)
class LoopContract(Generic[S]):
    """The seven stored fields of a bounded loop (S1-4); the eighth, the escalation, is a result."""

    local_aim: str
    initial_state: S
    action_policy: Callable[[LoopContext[S]], ActionDecision[S]]
    evaluator: Callable[[S], Evaluation]
    budget: int
    """Maximum attempts."""
    stopping_condition: Callable[[Evaluation], bool]
    authority_scope: AuthorityScope

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise ContractError("budget must be at least 1: an unbounded loop is not accepted")
        if not self.local_aim.strip():
            raise ContractError("local_aim must say what the loop is for")


@dataclass(frozen=True, kw_only=True)
class Progress(Generic[S]):
    """Where a loop stands between two attempts: all that has to be stored."""

    state: S
    attempts: int = 0
    feedback: str | None = None


@dataclass(frozen=True, kw_only=True)
class LoopResult(Generic[S]):
    """How a loop ended, with the evidence of where it got stuck (S1-24)."""

    outcome: Outcome
    local_aim: str
    attempts: int
    final_state: S
    evaluations: tuple[Evaluation, ...] = ()
    escalation: Escalation | None = None

    def __post_init__(self) -> None:
        if self.outcome is Outcome.SUCCESS and not self.evaluations:
            raise ContractError("a success without an evaluation record is a bug (S1-15)")


@dataclass(frozen=True, kw_only=True)
class Continue(Generic[S]):
    """The attempt was judged and another one may follow."""

    progress: Progress[S]
    evaluation: Evaluation


@dataclass(frozen=True, kw_only=True)
class Wait(Generic[S]):
    """Nothing was attempted: no iteration is used and nothing was judged, so nothing repeats."""

    progress: Progress[S]
    seconds: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Finish(Generic[S]):
    """The loop has ended."""

    result: LoopResult[S]


Turn = Continue[S] | Wait[S] | Finish[S]
"""What `advance` decides."""


def start(contract: LoopContract[S]) -> Progress[S]:
    """The progress before the first attempt."""
    return Progress(state=contract.initial_state)


def advance(contract: LoopContract[S], progress: Progress[S]) -> Turn[S]:
    """Take the loop one attempt further, or find that it has to wait.

    1. The guard: no attempt past the budget.
    2. The action policy acts.
    3. The authority check: a goal change, an escalation or a foreign action stops here. What is
       not ready yet ends here too, as a wait.
    4. The evaluator judges the new state, on every attempt.
    5. An escalating judgment wins over the stopping condition.
    6. The stopping condition decides, apart from the evaluator.
    7. The guard again, so that a spent budget is known at once and not one wake-up later.
    """
    if progress.attempts >= contract.budget:
        return exhausted(contract, progress)
    attempt = progress.attempts + 1
    decision = contract.action_policy(
        LoopContext(
            local_aim=contract.local_aim,
            state=progress.state,
            attempt=attempt,
            feedback=progress.feedback,
            authority_scope=contract.authority_scope,
        )
    )
    crossing = _crossing(contract.authority_scope, decision)
    if crossing is not None:
        return _escalated(contract, attempt, progress.state, crossing, ())
    if decision.state is None:
        raise ContractError(f"action {decision.action!r} led to no state")
    if decision.not_yet is not None:
        waiting = replace(progress, state=decision.state)
        later = decision.not_yet
        return Wait(progress=waiting, seconds=later.seconds, reason=later.reason)
    return _judged(contract, attempt, decision.state)


def _judged(contract: LoopContract[S], attempt: int, state: S) -> Turn[S]:
    """Steps 4 to 7 of `advance`."""
    evaluation = contract.evaluator(state)
    after = Progress(state=state, attempts=attempt, feedback=evaluation.feedback)
    if evaluation.judgment is Judgment.ESCALATE:
        escalation = Escalation(
            cause=evaluation.cause or "evaluator",
            reason=evaluation.feedback,
            ask=evaluation.ask,
        )
        return _escalated(contract, attempt, after.state, escalation, (evaluation,))
    if contract.stopping_condition(evaluation):
        return _success(contract, after, evaluation)
    if after.attempts >= contract.budget:
        return exhausted(contract, after, evaluation)
    return Continue(progress=after, evaluation=evaluation)


def run_loop(
    contract: LoopContract[S], *, sleep: Callable[[float], None] = time.sleep
) -> LoopResult[S]:
    """Run the loop to its end in this process and return its result with every evaluation."""
    progress, evaluations = start(contract), list[Evaluation]()
    while True:
        match advance(contract, progress):
            case Finish(result=result):
                return replace(result, evaluations=(*evaluations, *result.evaluations))
            case Continue(progress=progress, evaluation=evaluation):
                evaluations.append(evaluation)
            case Wait(progress=progress, seconds=seconds):
                sleep(seconds)


def exhausted(
    contract: LoopContract[S], progress: Progress[S], *evaluations: Evaluation
) -> Finish[S]:
    """The budget is spent: the aim stays, the state is handed back, nothing is retried (S1-16)."""
    return Finish(
        result=LoopResult(
            outcome=Outcome.BUDGET_EXHAUSTED,
            local_aim=contract.local_aim,
            attempts=progress.attempts,
            final_state=progress.state,
            evaluations=evaluations,
            escalation=Escalation(
                cause="iterations",
                reason=BUDGET_REASON,
                required_authority=contract.authority_scope.required_authority,
            ),
        )
    )


def _crossing(scope: AuthorityScope, decision: ActionDecision[S]) -> Escalation | None:
    if decision.escalation is not None:
        return decision.escalation
    if decision.goal_change is not None:
        return Escalation(
            cause="goal_change",
            reason="The loop proposes another goal; it may not apply one.",
            proposal=decision.goal_change,
        )
    if decision.action not in scope.allowed_actions:
        return Escalation(
            cause="authority", reason=f"Action {decision.action!r} is outside the loop's authority."
        )
    return None


def _escalated(
    contract: LoopContract[S],
    attempt: int,
    state: S,
    escalation: Escalation,
    evaluations: tuple[Evaluation, ...],
) -> Finish[S]:
    authority = escalation.required_authority or contract.authority_scope.required_authority
    return Finish(
        result=LoopResult(
            outcome=Outcome.ESCALATED,
            local_aim=contract.local_aim,
            attempts=attempt,
            final_state=state,
            evaluations=evaluations,
            escalation=replace(escalation, required_authority=authority),
        )
    )


def _success(contract: LoopContract[S], after: Progress[S], evaluation: Evaluation) -> Finish[S]:
    if evaluation.judgment is not Judgment.SUCCESS:
        raise ContractError("the stopping condition fired on a state the evaluator did not accept")
    return Finish(
        result=LoopResult(
            outcome=Outcome.SUCCESS,
            local_aim=contract.local_aim,
            attempts=after.attempts,
            final_state=after.state,
            evaluations=(evaluation,),
        )
    )
