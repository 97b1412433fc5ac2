"""The only writer of escalations: opens items for people and carries out their decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models.functions import Now

from loops.core.canonical import digest as digest_of
from loops.core.errors import LoopwardenError
from loops.core.lifecycle import RunStatus, StopReason, check_move
from loops.crashpoints import reach
from loops.figures import effective_status
from loops.models import AttemptStatus, Decision, Escalation, EscalationStatus, ProjectDay, Run
from loops.patterns.base import Answer
from loops.store import attempts, days, graph_grants, runs

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MOST_ROUNDS, USUAL_ROUNDS = 100, 2
_GO_ON = (Decision.CONTINUE, Decision.REFACTOR)
_ANSWERS = (
    Decision.APPROVE,
    Decision.REJECT,
    Decision.ANSWER,
    Decision.HAPPENED,
    Decision.NOT_HAPPENED,
)
_IN_WORDS = (Decision.REJECT, Decision.ANSWER)
_NO_AGENT_HEARS = (StopReason.GOVERNOR, StopReason.PROJECT_DAY)
_KEPT = (
    AttemptStatus.JUDGED,
    AttemptStatus.LIMIT,
    AttemptStatus.ESCALATED,
    AttemptStatus.WAITED,
)


class NotPossibleNow(LoopwardenError):
    """The item cannot be decided any more: somebody was first, or the run moved on (409)."""


class BadDecision(LoopwardenError):
    """The decision cannot be taken as it is. `field` names what is wrong (400)."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What goes into the queue."""

    cause: StopReason
    reason: str
    packet: dict[str, Any]
    allowed: tuple[Decision, ...] = (Decision.CONTINUE, Decision.ACCEPT, Decision.CLOSE)
    proposal: str = ""
    required_authority: str = ""
    model_said: str = ""


def park(claim: attempts.Claim, conclusion: attempts.Conclusion, proposal: Proposal) -> bool:
    """End the attempt and open the item, in one transaction. False: the lease is gone."""
    check_move(RunStatus.RUNNING, conclusion.status)
    with transaction.atomic():
        if not attempts.apply(claim, conclusion):
            return False
        _open(claim.run_id, claim.no, proposal)
        reach("parked")
    return True


def park_without_worker(run: Run, proposal: Proposal, *, reason: str) -> None:
    """The sweeper's: open the item for a run that no worker holds any more."""
    with transaction.atomic():
        runs.move(
            run,
            RunStatus.AT_GATE,
            stop_reason=proposal.cause,
            reason=reason,
            actor="system",
            kind="parked",
        )
        _open(run.pk, run.attempt_no, proposal)


def _open(run_id: int, no: int, proposal: Proposal) -> Escalation:
    return Escalation.objects.create(
        run_id=run_id,
        attempt_no=no,
        cause=proposal.cause,
        reason=proposal.reason,
        proposal=proposal.proposal,
        required_authority=proposal.required_authority,
        packet=proposal.packet,
        digest=digest_of(proposal.packet),
        allowed=[decision.value for decision in proposal.allowed],
        model_said=proposal.model_said,
    )


def decide(
    escalation_id: int,
    *,
    decision: str,
    digest: str,
    user: User,
    guidance: str = "",
    iterations: int | None = None,
) -> Escalation:
    """Carry out one person's decision on exactly what was shown.

    1. The item must be open and the digest must be the shown one: the first writer wins.
    2. The decision is recorded with who and when.
    3. The run moves on: again in the queue with guidance, from where it stands or with the attempt
       undone, or accepted as it is, or closed. To go on it gets `iterations` more rounds, 2 when
       none are named (and once
       more of what ran out, as the packet said), unless it only paused and has rounds left. Where
       its graph's budget ran out, the graph gets more, as the packet said, and where its project's
       day is used up, the day. An answer to a question of the loop grants nothing: the loop finds
       it and goes on.

    Raises `BadDecision` or `NotPossibleNow`; nothing is changed then.
    """
    item = Escalation.objects.select_related("run__task").get(pk=escalation_id)
    _check(item, decision, guidance, iterations)
    goes_on = decision in _GO_ON and not _costs_no_round(item)
    grants = (USUAL_ROUNDS if iterations is None else iterations) if goes_on else 0
    with transaction.atomic():
        run = Run.objects.select_for_update().get(pk=item.run_id)
        won = Escalation.objects.filter(
            pk=item.pk, status=EscalationStatus.OPEN, digest=digest
        ).update(
            status=EscalationStatus.DECIDED,
            decision=decision,
            guidance=guidance,
            granted_iterations=grants,
            decided_by=user,
            decided_at=Now(),
        )
        if not won:
            raise NotPossibleNow(_why_not(item.pk, digest))
        if effective_status(run)[0] is not RunStatus.AT_GATE:
            raise NotPossibleNow("The run is not at the gate any more: its deadline has passed.")
        item.refresh_from_db()
        reach("deciding")
        if item.cause == StopReason.GOVERNOR:
            _govern(run, item, user)
        elif decision in _GO_ON:
            _raise_graph(item, user)
            _queue_again(run, item, user)
        elif decision in _ANSWERS:
            _raise_day(item, user)
            _answered(run, item, user)
        else:
            _end(run, Decision(decision), user)
    return item


def _check(item: Escalation, decision: str, guidance: str, iterations: int | None) -> None:
    if decision not in item.allowed:
        raise BadDecision("decision", f"must be one of: {', '.join(item.allowed)}")
    if decision == Decision.CHANGE_GOAL and not guidance.strip():
        raise BadDecision("guidance", "say what the new goal is")
    if decision == Decision.CHANGE_GOAL and _is_the_goal(item, guidance):
        raise BadDecision("guidance", "this is the goal already: say what the new one is")
    if decision in _GO_ON and not _is_pause(item) and not guidance.strip():
        raise BadDecision("guidance", "say what the next round should do differently")
    if decision in _GO_ON and iterations is not None:
        if _costs_no_round(item):
            raise BadDecision("iterations", "this pause grants no rounds: leave it out")
        if not 1 <= iterations <= MOST_ROUNDS:
            raise BadDecision("iterations", f"must be between 1 and {MOST_ROUNDS}")
    if decision in _IN_WORDS and item.cause not in _NO_AGENT_HEARS and not guidance.strip():
        raise BadDecision("guidance", "say it in words: they go to the agent")


def _why_not(item_id: int, digest: str) -> str:
    item = Escalation.objects.select_related("decided_by").get(pk=item_id)
    if item.status == EscalationStatus.OPEN and item.digest != digest:
        return "What you saw has changed since. Look at it again."
    if item.status == EscalationStatus.DECIDED:
        words = Decision(item.decision).label.lower()
        if item.decision == Decision.CONTINUE and not item.guidance.strip():
            words = "continue"
        return f"{item.decided_by or 'Somebody'} was first: {words}."
    if item.cause == StopReason.PROJECT_DAY:
        return "This item is not open any more: the day is over, or more was granted."
    return "This item is not open any more: its run has ended."


def _is_the_goal(item: Escalation, words: str) -> bool:
    graph = item.run.graph
    return graph is not None and words.split() == graph.aim.split()


def _is_pause(item: Escalation) -> bool:
    """Whether nothing is wrong with the work itself: it only waits, or its graph's budget ended."""
    return item.cause == StopReason.YIELD or "raises_graph" in item.packet


def _costs_no_round(item: Escalation) -> bool:
    """A pause needs no grant of rounds: the cap stays as it is (S4-14)."""
    return _is_pause(item) and item.run.iterations < item.run.limit_iterations


def _raise_graph(item: Escalation, user: User) -> None:
    """What the packet said of the graph's limits, unless somebody has raised them that far."""
    caps = item.packet.get("raises_graph")
    if not caps or item.run.graph_id is None:
        return
    try:
        graph_grants.raise_limits(item.run.graph_id, caps, user=user)
    except graph_grants.NothingStarts as error:
        raise NotPossibleNow(str(error)) from error


def _raise_day(item: Escalation, user: User) -> None:
    """What the packet said of the project's day, if it is approved and nobody was faster."""
    raises = item.packet.get("raises_day")
    if raises is None:
        return
    # The lock keeps a grant at the command line from coming in between.
    day = ProjectDay.objects.select_for_update(no_key=True).get(pk=raises["day"])
    if not days.used_up().filter(pk=day.pk).exists():
        raise NotPossibleNow("The day is over, or somebody has granted more already.")
    if item.decision == Decision.APPROVE:
        tokens, microusd = raises.get("tokens", 0), raises.get("cost_microusd", 0)
        days.grant(day, tokens=tokens, microusd=microusd, user=user, actor=user.get_username())


def _queue_again(run: Run, item: Escalation, user: User) -> None:
    more = item.granted_iterations
    if more:
        # What ran out, beside the rounds, stood in the packet with its amount.
        amounts = {"iterations": more, **item.packet.get("also_grants", {})}
        runs.grant(run, amounts, granted_by=user)
    undo = item.decision == Decision.REFACTOR
    name, verb = user.get_username(), "had the attempt undone" if undo else "continued it"
    words = "guidance" if item.guidance.strip() else "the feedback as it was"
    rounds = {0: "", 1: " and 1 more round"}.get(more, f" and {more} more rounds")
    runs.move(
        run,
        RunStatus.QUEUED,
        stop_reason=None,
        reason="",
        actor=name,
        kind="refactored" if undo else "continued",
        text=f"{name} {verb} with {words}{rounds}",
        extra={
            "feedback": _next_feedback(run, item),
            "next_at": Now(),
            "ended_at": None,
            "errors": 0,
        },
    )


def _answered(run: Run, item: Escalation, user: User) -> None:
    name, label = user.get_username(), Decision(item.decision).label.lower()
    runs.move(
        run,
        RunStatus.QUEUED,
        stop_reason=None,
        reason="",
        actor=name,
        kind="answered",
        text=f"{name} decided: {label}",
        extra={"next_at": Now(), "ended_at": None, "errors": 0},
    )


def answer_of(run: Run) -> Answer | None:
    """The newest decision on something that the loop itself had asked, with what was shown."""
    decided = Escalation.objects.filter(run=run, decision__in=(*_GO_ON, *_ANSWERS))
    found = decided.filter(packet__has_key="asks").order_by("-pk").first()
    if found is None:
        return None
    return Answer(decision=found.decision, words=found.guidance.strip(), shown=found.packet["asks"])


def _next_feedback(run: Run, item: Escalation) -> str:
    """At a pause the person edits the feedback; elsewhere the guidance stands before it."""
    guidance, before = item.guidance.strip(), run.feedback or ""
    if item.cause == StopReason.YIELD:
        return guidance or before
    return "\n\n".join(filter(None, [guidance, before]))


def decided_on(run: Run) -> Escalation | None:
    """What a person decided on the last attempt whose work was kept, if they let the run go on."""
    # Most runs were never at the gate: one query tells.
    decided = list(
        Escalation.objects.filter(run=run, decision__in=_GO_ON).defer("packet").order_by("-pk")
    )
    if not decided:
        return None
    last = run.attempts.filter(status__in=_KEPT).order_by("-no").first()
    return next((item for item in decided if last and item.attempt_no == last.no), None)


def _end(run: Run, decision: Decision, user: User) -> None:
    name = user.get_username()
    match decision:
        case Decision.ACCEPT:
            runs.move(
                run,
                RunStatus.SUCCEEDED,
                stop_reason=StopReason.ACCEPTED_BY_PERSON,
                reason=f"Accepted as it is by {name}.",
                actor=name,
                kind="accepted",
            )
        case Decision.CLOSE:
            runs.move(
                run,
                RunStatus.ESCALATED,
                stop_reason=StopReason.CLOSED_BY_PERSON,
                reason=f"Closed by {name}, without a result.",
                actor=name,
                kind="closed",
            )


def _govern(run: Run, item: Escalation, user: User) -> None:
    """The governor of a graph has decided: the graph's next pass does what it said (S1-X10)."""
    approved = item.decision == Decision.APPROVE
    words = {
        Decision.APPROVE: "Approved by",
        Decision.REJECT: "Rejected by",
        Decision.CHANGE_GOAL: "Goal changed by",
    }[Decision(item.decision)]
    name = user.get_username()
    runs.move(
        run,
        RunStatus.SUCCEEDED if approved else RunStatus.ESCALATED,
        stop_reason=StopReason.ACCEPTED_BY_PERSON if approved else StopReason.CLOSED_BY_PERSON,
        reason=f"{words} {name}.",
        actor=name,
        kind="governed",
    )


def cancel(run: Run, *, actor: str) -> bool:
    """Stop the run, and take what it asks people out of the queue. False: it has ended already."""
    with transaction.atomic():
        done = runs.cancel(run, actor=actor)
        withdraw(run.pk)
    return done


def take_back(item: Escalation) -> bool:
    """The sweeper's: what was asked has settled itself, so the run waits in the queue again.

    False: somebody has decided. Raises `MovedOn`.
    """
    with transaction.atomic():
        run = Run.objects.select_for_update().get(pk=item.run_id)
        if not withdraw(run.pk):
            return False
        runs.move(
            run,
            RunStatus.QUEUED,
            stop_reason=None,
            reason="",
            actor="system",
            kind="unparked",
            text="nobody needs to decide any more: it waits in the queue again",
            extra={"next_at": Now()},
        )
    return True


def withdraw(run_id: int, status: EscalationStatus = EscalationStatus.WITHDRAWN) -> int:
    """Take open items out of the queue: their run ended, or needs no answer. Returns how many.

    `EXPIRED` says that nobody decided in time, which is no rejection (RC146).
    """
    return Escalation.objects.filter(run_id=run_id, status=EscalationStatus.OPEN).update(
        status=status, decided_at=Now()
    )
