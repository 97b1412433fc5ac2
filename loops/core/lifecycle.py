"""What state a run is in, why it stopped, and what may follow what."""

from __future__ import annotations

from enum import StrEnum

from loops.core.errors import IllegalMove


class RunStatus(StrEnum):
    """*What* state a run is in."""

    QUEUED = "queued"  # the next attempt may be claimed
    RUNNING = "running"  # an attempt holds the lease
    AT_GATE = "at_gate"  # a person must decide
    SUCCEEDED = "succeeded"  # judged and accepted
    BUDGET_EXHAUSTED = "budget_exhausted"  # a limit ended it
    ESCALATED = "escalated"  # it went to a person, who closed it
    CANCELLED = "cancelled"  # somebody stopped it
    FAILED = "failed"  # it could not be carried out


TERMINAL = frozenset(
    {
        RunStatus.SUCCEEDED,
        RunStatus.BUDGET_EXHAUSTED,
        RunStatus.ESCALATED,
        RunStatus.CANCELLED,
        RunStatus.FAILED,
    }
)


class StopReason(StrEnum):
    """*Why* a run is where it is. Stable words; `SENTENCES` has them for people."""

    ACCEPTED = "accepted"
    ACCEPTED_BY_PERSON = "accepted_by_person"
    CLOSED_BY_PERSON = "closed_by_person"
    CANCELLED_BY_PERSON = "cancelled_by_person"
    ITERATIONS = "iterations"
    MODEL_CALLS = "model_calls"
    TOOL_CALLS = "tool_calls"
    TOKENS = "tokens"
    COST = "cost"
    ERRORS = "errors"
    ACTIVE_SECONDS = "active_seconds"
    DEADLINE = "deadline"
    WORKER_LOST = "worker_lost"
    REFUSAL = "refusal"
    REVIEWER_INVALID_VERDICT = "reviewer_invalid_verdict"
    CODER_UNUSABLE_ANSWER = "coder_unusable_answer"
    REPEATED_FINDING = "repeated_finding"
    REVIEWER_ABORT = "reviewer_abort"
    YIELD = "yield"
    COMMAND_NOT_FOUND = "command_not_found"
    GOAL_CHANGE = "goal_change"
    AUTHORITY = "authority"
    EVALUATOR = "evaluator"
    HOOK_FAILED = "hook_failed"
    WORKSPACE = "workspace"
    NO_CHANGE = "no_change"
    SAME_FAILURE = "same_failure"
    SPEND_WITHOUT_CHANGE = "spend_without_change"
    BACK_AND_FORTH = "back_and_forth"
    POLLS = "polls"
    QUOTA_SKIPPED = "quota_skipped"
    NO_PROGRESS = "no_progress"
    GATE_EXPIRED = "gate_expired"
    APPROVAL = "approval"
    INPUT = "input"
    OUTCOME_UNKNOWN = "outcome_unknown"
    REVISIONS = "revisions"
    STEPS = "steps"
    PLAN_REJECTED = "plan_rejected"
    CAPABILITY_UNAVAILABLE = "capability_unavailable"
    TOOL_UNAUTHORIZED = "tool_unauthorized"
    AGENT_UNUSABLE_ANSWER = "agent_unusable_answer"
    AGENT_UNUSABLE = "agent_unusable"
    GOVERNOR = "governor"
    PROJECT_DAY = "project_day"


LIMIT_REASONS = frozenset(
    {
        StopReason.ITERATIONS,
        StopReason.MODEL_CALLS,
        StopReason.TOOL_CALLS,
        StopReason.TOKENS,
        StopReason.COST,
        StopReason.ERRORS,
        StopReason.ACTIVE_SECONDS,
        StopReason.DEADLINE,
        StopReason.WORKER_LOST,
        StopReason.NO_CHANGE,
        StopReason.REPEATED_FINDING,
        StopReason.SAME_FAILURE,
        StopReason.SPEND_WITHOUT_CHANGE,
        StopReason.BACK_AND_FORTH,
        StopReason.POLLS,
        StopReason.NO_PROGRESS,
        StopReason.REVISIONS,
        StopReason.STEPS,
    }
)

SENTENCES: dict[StopReason, str] = {
    StopReason.ACCEPTED: "Accepted by its evaluator.",
    StopReason.ACCEPTED_BY_PERSON: "Accepted as it is by a person.",
    StopReason.CLOSED_BY_PERSON: "Closed by a person, without a result.",
    StopReason.CANCELLED_BY_PERSON: "Cancelled by a person.",
    StopReason.ITERATIONS: "All allowed iterations are used.",
    StopReason.MODEL_CALLS: "The limit on model calls does not admit the next call.",
    StopReason.TOOL_CALLS: "The limit on tool calls does not admit the next call.",
    StopReason.TOKENS: "The token limit does not admit the next call.",
    StopReason.COST: "The cost limit does not admit the next call.",
    StopReason.ERRORS: "Too many attempts ended in an error.",
    StopReason.ACTIVE_SECONDS: "The allowed working time is used.",
    StopReason.DEADLINE: "The deadline has passed.",
    StopReason.WORKER_LOST: "The worker died too often during the same attempt.",
    StopReason.REFUSAL: "The model declined to answer.",
    StopReason.REVIEWER_INVALID_VERDICT: "The reviewer gave no valid verdict, its repair neither.",
    StopReason.CODER_UNUSABLE_ANSWER: "The coder gave no usable code block, its repair neither.",
    StopReason.REPEATED_FINDING: "Reviews in a row repeat the same finding.",
    StopReason.REVIEWER_ABORT: "The reviewer stops the work and asks for a person.",
    StopReason.YIELD: "It waits for a person after each attempt.",
    StopReason.COMMAND_NOT_FOUND: "A command of the task was not found or cannot be run.",
    StopReason.GOAL_CHANGE: "The loop proposes another goal.",
    StopReason.AUTHORITY: "An action is outside the loop's authority.",
    StopReason.EVALUATOR: "The evaluator asks for a person.",
    StopReason.HOOK_FAILED: "The project's own commit hook refuses the result.",
    StopReason.WORKSPACE: "The workspace could not be prepared or restored.",
    StopReason.NO_CHANGE: "No fix changed anything.",
    StopReason.SAME_FAILURE: "The same failure comes back after each attempt.",
    StopReason.SPEND_WITHOUT_CHANGE: "Attempts cost something and change nothing.",
    StopReason.BACK_AND_FORTH: "The work goes back and forth between the same two states.",
    StopReason.POLLS: "A check was not ready after all allowed looks.",
    StopReason.QUOTA_SKIPPED: "Passed with a check skipped, because a quota was used up.",
    StopReason.NO_PROGRESS: "The same was done again with the same result.",
    StopReason.GATE_EXPIRED: "Nobody decided in time.",
    StopReason.APPROVAL: "An action of high impact waits for approval.",
    StopReason.INPUT: "It needs an answer that no model may give.",
    StopReason.OUTCOME_UNKNOWN: "Nobody knows whether an action happened.",
    StopReason.REVISIONS: "All allowed revisions are used.",
    StopReason.STEPS: "All allowed plan steps are used.",
    StopReason.PLAN_REJECTED: "No plan kept to the rules.",
    StopReason.CAPABILITY_UNAVAILABLE: "A tool that the plan needs is not available.",
    StopReason.TOOL_UNAUTHORIZED: "A plan needs a tool that the task may not use.",
    StopReason.AGENT_UNUSABLE_ANSWER: "An agent gave no usable answer, its repair neither.",
    StopReason.AGENT_UNUSABLE: "An agent cannot be used as it is set up; asking again is no help.",
    StopReason.GOVERNOR: "The governor of its graph decides.",
    StopReason.PROJECT_DAY: "What its project may spend in a day is used up.",
}

MOVES: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.QUEUED: frozenset(RunStatus) - {RunStatus.QUEUED, RunStatus.SUCCEEDED},
    RunStatus.RUNNING: frozenset(RunStatus) - {RunStatus.RUNNING},
    RunStatus.AT_GATE: frozenset(RunStatus) - {RunStatus.AT_GATE, RunStatus.RUNNING},
    **{status: frozenset() for status in TERMINAL},
}

if set(MOVES) != set(RunStatus) or set(SENTENCES) != set(StopReason):
    raise AssertionError("every status needs its moves and every stop reason its sentence")


def check_move(old: RunStatus, new: RunStatus) -> None:
    """Raise `IllegalMove` unless `new` may follow `old`. Terminal statuses have no way out."""
    if new not in MOVES[old]:
        raise IllegalMove(f"a run that is {old} cannot become {new}")
