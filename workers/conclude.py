"""From what an attempt came to, to what becomes of its run, as values: nothing is written here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings

from loops.core.contract import (
    Continue,
    Escalation,
    Evaluation,
    Finish,
    LoopResult,
    Outcome,
    Turn,
    Wait,
)
from loops.core.errors import AgentFault, ContractError, LimitReached, Overrun, UndoFailed
from loops.core.lifecycle import LIMIT_REASONS, SENTENCES, RunStatus, StopReason
from loops.gates import Proposal
from loops.models import AttemptStatus, Decision, OnLimit, Run
from loops.patterns.base import Pattern
from loops.patterns.findings import as_feedback
from loops.store import graph_grants
from loops.store.attempts import Conclusion

_RETRY_SECONDS = 2
_AXES = {StopReason.COST: "cost_microusd"}
"""Where a limit's name is not that of its reason."""
_SAID_BY_A_MODEL = (StopReason.REVIEWER_ABORT, StopReason.EVALUATOR)
"""Where the reason may be bare words of a model: the sentence says whose they are."""
_NOT_FOR_PEOPLE = (
    StopReason.COMMAND_NOT_FOUND,
    StopReason.WORKSPACE,
    StopReason.PLAN_REJECTED,
    StopReason.CAPABILITY_UNAVAILABLE,
    StopReason.TOOL_UNAUTHORIZED,
)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How an attempt ends: what is written, and the gate item if a person must decide."""

    conclusion: Conclusion
    proposal: Proposal | None = None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the attempt left behind, for people and for the next attempt."""

    tree: str = ""
    """Snapshot of the workspace as the attempt left it."""
    pack: str = ""
    """Artifact with the objects of this attempt's snapshots."""
    result: dict[str, Any] | None = None
    """What the run has to hand over so far."""
    packet: dict[str, Any] = field(default_factory=dict)
    """Rejected artifact or diff, checks, hook."""
    moved: bool = False
    """The attempt changed the workspace, so there is something to undo."""
    hook_refused: bool = False
    """The project's own commit hook refuses the result."""
    remarks: tuple[str, ...] = ()
    """Said in the run's last event, such as script steps that nobody used."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What surrounds an attempt's ending."""

    run: Run
    pattern: Pattern[Any, Any]
    spec: Any
    active_ms: int
    evidence: Evidence = Evidence()


def ending(turn: Turn[Any] | None, error: Exception | None, facts: Facts) -> Ending:
    """The ending of an attempt that decided something, or threw."""
    match error:
        case LimitReached():
            return limited(error, facts)
        case UndoFailed():
            return stopped(StopReason.WORKSPACE, str(error), facts)
        case None if turn is not None:
            return judged(turn, facts)
    return failed(error or ContractError("the loop decided nothing"), facts)


def judged(decision: Turn[Any], facts: Facts) -> Ending:
    """The ending of an attempt that `advance` has decided on."""
    match decision:
        case Continue(progress=progress, evaluation=evaluation):
            return _go_on(facts, evaluation, _draft(facts, progress.state, evaluation))
        case Wait():
            return _wait(facts, decision)
        case Finish(result=result):
            last = result.evaluations[-1] if result.evaluations else None
            return _finish(facts, result, _draft(facts, result.final_state, last))


def limited(error: LimitReached, facts: Facts) -> Ending:
    """A limit refused the attempt's next call: the attempt does not count, its effects stay."""
    cause = StopReason(error.axis)
    draft = replace(_unjudged(facts), attempt_status=AttemptStatus.LIMIT, label="limit")
    if error.owner == "graph":
        return _at_graphs_limit(error, facts, draft)
    reason = f"{SENTENCES[cause]} {error.details}"
    if isinstance(error, Overrun):
        reason = error.details
    if error.owner == "project-day":
        reason = f"One call asks for more than its project may spend in a day. {reason}"
    return _at_limit(facts, cause, reason, draft)


def _at_graphs_limit(error: LimitReached, facts: Facts, draft: Conclusion) -> Ending:
    """What its graph may spend is used: a person may raise it, no grant to the run would help."""
    cause = StopReason(error.axis)
    reason = f"What its graph may spend is used. {SENTENCES[cause]} {error.details}"
    graph = facts.run.graph
    if graph is None or facts.run.task.on_limit == OnLimit.STOP:
        return _stop_at_limit(cause, reason, draft)
    axis = _AXES.get(cause, cause.value)
    raises = {axis: graph_grants.next_limit(graph, axis, error)}
    return _gate(facts, Escalation(cause=cause, reason=reason), draft, raises_graph=raises)


def failed(error: Exception, facts: Facts) -> Ending:
    """The attempt threw: it costs no iteration and may be repeated, `errors` times (S0-G4).

    What no repetition mends is not repeated: a key that is refused stays refused.
    """
    sentence = str(error) or type(error).__name__
    draft = replace(
        _unjudged(facts),
        attempt_status=AttemptStatus.ERROR,
        errored=True,
        error=sentence,
        label="error",
        tree=facts.run.tree,
    )
    if isinstance(error, AgentFault) and not error.repeatable:
        cause = StopReason.AGENT_UNUSABLE
        return _not_carried_out(facts, cause, f"{SENTENCES[cause]} {sentence}", draft)
    used = facts.run.errors + 1
    if used > facts.run.limit_errors:
        cause = StopReason.ERRORS
        return _at_limit(facts, cause, f"{SENTENCES[cause]} The last one: {sentence}", draft)
    wished = error.retry_after if isinstance(error, AgentFault) else None
    delay = min(max(_RETRY_SECONDS**used, wished or 0), settings.LOOPWARDEN_RETRY_SECONDS)
    return Ending(
        conclusion=replace(
            draft, status=RunStatus.QUEUED, delay_seconds=delay, event=f"error: {sentence}"
        )
    )


def _draft(facts: Facts, state: Any, evaluation: Evaluation | None) -> Conclusion:
    draft = replace(_unjudged(facts), state=facts.pattern.dump_state(state))
    if evaluation is None:
        return draft
    return replace(
        draft,
        counted=evaluation.costs_round,
        label=evaluation.label,
        judgment=evaluation.judgment.value,
        feedback=evaluation.feedback,
        shown=evaluation.feedback,
        data={"reasons": list(evaluation.reasons)},
    )


def _unjudged(facts: Facts) -> Conclusion:
    return Conclusion(
        status=RunStatus.QUEUED,
        attempt_status=AttemptStatus.JUDGED,
        feedback=facts.run.feedback,
        state=facts.run.state,
        tree=facts.evidence.tree,
        tree_after=facts.evidence.tree,
        pack=facts.evidence.pack,
        result=facts.evidence.result,
        active_ms=facts.active_ms,
    )


def stopped(cause: StopReason, reason: str, facts: Facts) -> Ending:
    """The attempt met something that no repetition mends: it does not count."""
    draft = replace(_unjudged(facts), attempt_status=AttemptStatus.ESCALATED)
    return _escalated(facts, Escalation(cause=cause, reason=reason), draft)


def _go_on(facts: Facts, evaluation: Evaluation, draft: Conclusion) -> Ending:
    if _time_used(facts):
        cause = StopReason.ACTIVE_SECONDS
        return _at_limit(facts, cause, SENTENCES[cause], draft)
    if evaluation.pause:
        return _gate(facts, Escalation(cause=StopReason.YIELD, reason=""), draft)
    return Ending(conclusion=replace(draft, event=draft.label or "judged"))


def _wait(facts: Facts, decision: Wait[Any]) -> Ending:
    """The run waits in the database, holding no worker and no slot; the attempt does not count."""
    draft = replace(
        _draft(facts, decision.progress.state, None),
        attempt_status=AttemptStatus.WAITED,
        label="not ready",
    )
    if _time_used(facts):
        cause = StopReason.ACTIVE_SECONDS
        return _at_limit(facts, cause, SENTENCES[cause], draft)
    reason = f"{decision.reason} It looks again in {decision.seconds:g} s."
    return Ending(
        conclusion=replace(draft, delay_seconds=decision.seconds, reason=reason, event=reason)
    )


def _time_used(facts: Facts) -> bool:
    cap = facts.run.limit_active_seconds
    return cap is not None and facts.run.active_ms + facts.active_ms >= cap * 1000


def _finish(facts: Facts, result: LoopResult[Any], draft: Conclusion) -> Ending:
    match result.outcome:
        case Outcome.SUCCESS if facts.evidence.hook_refused:
            cause = StopReason.HOOK_FAILED
            return _gate(facts, Escalation(cause=cause, reason=SENTENCES[cause]), draft)
        case Outcome.SUCCESS:
            return Ending(
                conclusion=replace(
                    draft,
                    status=RunStatus.SUCCEEDED,
                    stop_reason=_success_reason(result),
                    event="; ".join([_success(draft.label), *facts.evidence.remarks]),
                )
            )
        case Outcome.BUDGET_EXHAUSTED:
            reason = facts.pattern.limit_reason(facts.spec, facts.run.limits)
            return _at_limit(facts, StopReason.ITERATIONS, reason, draft)
        case Outcome.ESCALATED:
            escalation = result.escalation or Escalation(cause=StopReason.EVALUATOR, reason="")
            return _escalated(facts, escalation, _for_a_person(facts, draft))


def _success_reason(result: LoopResult[Any]) -> StopReason:
    return StopReason(result.evaluations[-1].cause or StopReason.ACCEPTED)


def _success(label: str) -> str:
    return f"succeeded: {label}" if label else "succeeded"


def _for_a_person(facts: Facts, draft: Conclusion) -> Conclusion:
    """If the person lets it go on, the agent gets the reasons, not the sentence for people."""
    reasons = tuple(draft.data.get("reasons", ()))
    feedback = as_feedback(reasons) if reasons else facts.run.feedback
    return replace(draft, feedback=feedback)


def _escalated(facts: Facts, escalation: Escalation, draft: Conclusion) -> Ending:
    """A loop that got stuck stops like at a limit; where nobody is to be asked, it has failed."""
    cause = StopReason(escalation.cause)
    reason = escalation.reason or SENTENCES[cause]
    if cause in LIMIT_REASONS and facts.run.task.on_limit == OnLimit.STOP:
        return _at_limit(facts, cause, reason, draft)
    if cause in _NOT_FOR_PEOPLE and facts.run.task.on_limit == OnLimit.STOP:
        return _not_carried_out(facts, cause, reason, draft)
    return _gate(facts, escalation, replace(draft, attempt_status=AttemptStatus.ESCALATED))


def _not_carried_out(facts: Facts, cause: StopReason, reason: str, draft: Conclusion) -> Ending:
    """The task as it is set up cannot be carried out: it has failed, if nobody is to be asked."""
    if facts.run.task.on_limit == OnLimit.GATE:
        return _gate(facts, Escalation(cause=cause, reason=reason), draft)
    failed_run = replace(
        draft, status=RunStatus.FAILED, stop_reason=cause, reason=reason, event=reason
    )
    return Ending(conclusion=failed_run)


def _at_limit(facts: Facts, cause: StopReason, reason: str, draft: Conclusion) -> Ending:
    """A limit is reached: the task's `on_limit` says whether a person is asked."""
    if facts.run.task.on_limit == OnLimit.GATE:
        return _gate(facts, Escalation(cause=cause, reason=reason), draft)
    return _stop_at_limit(cause, reason, draft)


def _stop_at_limit(cause: StopReason, reason: str, draft: Conclusion) -> Ending:
    result = {**(draft.result or {}), "remains": draft.feedback or "", "limit": cause.value}
    return Ending(
        conclusion=replace(
            draft,
            status=RunStatus.BUDGET_EXHAUSTED,
            stop_reason=cause,
            reason=reason,
            event=f"stopped: {reason}",
            result=result,
        )
    )


def _gate(
    facts: Facts,
    escalation: Escalation,
    draft: Conclusion,
    *,
    raises_graph: dict[str, int] | None = None,
) -> Ending:
    cause = StopReason(escalation.cause)
    reason = escalation.reason or SENTENCES[cause]
    if cause in _SAID_BY_A_MODEL and not reason.startswith(SENTENCES[cause]):
        reason = f"{SENTENCES[cause]} {reason}"
    # What the project's own hook refuses may be worked on or dropped, never waved through.
    acceptable = draft.result is not None and not facts.evidence.hook_refused
    return Ending(
        conclusion=replace(
            draft,
            status=RunStatus.AT_GATE,
            stop_reason=cause,
            reason=reason,
            event=f"at the gate: {reason}",
        ),
        proposal=Proposal(
            cause=cause,
            reason=reason,
            packet={
                **_packet(facts, escalation, reason, draft),
                **({"raises_graph": raises_graph} if raises_graph else _also_grants(facts, cause)),
            },
            allowed=_asked(escalation)
            or _allowed(facts, cause, acceptable=acceptable, has_rounds=bool(raises_graph)),
            model_said=draft.label,
            proposal=escalation.proposal or "",
            required_authority=escalation.required_authority,
        ),
    )


def _asked(escalation: Escalation) -> tuple[Decision, ...]:
    words = escalation.ask.decisions if escalation.ask else ()
    return tuple(Decision(word) for word in words)


def _also_grants(facts: Facts, cause: StopReason) -> dict[str, Any]:
    """If a person lets it go on, as much again of what ran out: rounds alone would not help."""
    axis = _AXES.get(cause, cause.value)
    cap = facts.run.task.limits.get(axis)
    ran_out = cause in LIMIT_REASONS and cause is not StopReason.ITERATIONS
    return {"also_grants": {axis: cap}} if ran_out and cap else {}


def _allowed(
    facts: Facts, cause: StopReason, *, acceptable: bool, has_rounds: bool
) -> tuple[Decision, ...]:
    most = facts.pattern.max_iterations
    again = has_rounds or most is None or facts.run.limit_iterations < most
    undo = again and facts.evidence.moved and cause is not StopReason.WORKSPACE
    return (
        *((Decision.CONTINUE,) if again else ()),
        *((Decision.REFACTOR,) if undo else ()),
        *((Decision.ACCEPT,) if acceptable else ()),
        Decision.CLOSE,
    )


def _packet(facts: Facts, escalation: Escalation, reason: str, draft: Conclusion) -> dict[str, Any]:
    run = facts.run
    return {
        "why": reason,
        "cause": escalation.cause,
        "said": draft.label,
        "feedback": draft.feedback or "",
        "reasons": draft.data.get("reasons") or ([draft.feedback] if draft.feedback else []),
        "attempt": run.attempt_no,
        "iterations": run.iterations + int(draft.counted),
        "cap": run.limit_iterations,
        "cost_microusd": run.used.cost_microusd,
        "tokens": run.used.tokens,
        "active_ms": run.active_ms + facts.active_ms,
        **({"proposal": escalation.proposal} if escalation.proposal else {}),
        **facts.evidence.packet,
        **({"asks": dict(escalation.ask.shown)} if escalation.ask else {}),
    }
