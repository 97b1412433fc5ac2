"""The figures of a run as people see them: one source for pages, API and command line."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Exists, OuterRef, Q

from loops import clock
from loops.core.contract import Judgment
from loops.core.lifecycle import LIMIT_REASONS, SENTENCES, TERMINAL, RunStatus, StopReason
from loops.core.money import dollars
from loops.models import (
    Attempt,
    AttemptStatus,
    Decision,
    Escalation,
    EscalationStatus,
    Graph,
    Run,
    Task,
)

_TONES = {
    "checks failed": "checks",
    "refactor": "refactor",
    "no verdict": "checks",
    "quota skipped": "changes",
}
_ENDED = {
    AttemptStatus.RUNNING: "run",
    AttemptStatus.LIMIT: "changes",
    AttemptStatus.ESCALATED: "gate",
    AttemptStatus.ERROR: "checks",
    AttemptStatus.WAITED: "idle",
    AttemptStatus.ABANDONED: "idle",
}


@dataclass(frozen=True, kw_only=True)
class Meter:
    """Spent, reserved and cap of one axis, in its own unit."""

    axis: str
    title: str
    used: int
    reserved: int
    cap: int | None

    @property
    def used_percent(self) -> int:
        """For the solid part."""
        return min(100, self.used * 100 // self.cap) if self.cap else 0

    @property
    def reserved_percent(self) -> int:
        """For the hatched part."""
        if not self.cap:
            return 0
        return min(100 - self.used_percent, -(-self.reserved * 100 // self.cap))

    @property
    def heat(self) -> str:
        """`hot` from 95 %, `warm` from 75 %."""
        filled = self.used_percent + self.reserved_percent
        return "hot" if filled >= 95 else "warm" if filled >= 75 else ""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One place on the rail."""

    tone: str
    """pass, changes, checks, refactor, run, or empty for a place not used yet."""
    title: str
    counted: bool = False
    """Whether an iteration was spent here."""


def attempt_tone(attempt: Attempt) -> str:
    """The colour class of an attempt: its end if it ended early, else its judgment."""
    ended = _ENDED.get(AttemptStatus(attempt.status))
    if ended:
        return ended
    if attempt.judgment == Judgment.SUCCESS and attempt.label not in _TONES:
        return "pass"
    return _TONES.get(attempt.label, "changes")


MOST_SLOTS = 24
REMAINS_CHARACTERS = 300
"""What a rail draws at most: a limit of 1,000 is a number, not 1,000 boxes."""


def rail(run: Run, attempts: list[Attempt]) -> list[Slot]:
    """One slot per allowed iteration, the used ones coloured by their judgment.

    Of a long run only the last `MOST_SLOTS` slots around the current one.
    """
    counted = [a for a in attempts if a.counted]
    slots = [
        Slot(tone=attempt_tone(a), title=f"{a.no}: {a.label or a.status}", counted=True)
        for a in counted[-MOST_SLOTS + 1 :]
    ]
    if effective_status(run)[0] is RunStatus.RUNNING and run.iterations < run.limit_iterations:
        slots.append(Slot(tone="run", title="running"))
    left = run.limit_iterations - run.iterations - (len(slots) > len(counted))
    room = max(0, min(left, MOST_SLOTS - len(slots)))
    return slots + [Slot(tone="", title="not used")] * room


_METERED = {
    "model_calls": "Model calls",
    "tokens": "Tokens",
    "cost_microusd": "Cost",
    "tool_calls": "Tool calls",
}


def meters(run: Run | Graph) -> list[Meter]:
    """The counted axes that are capped or used."""
    found = _all_meters(run)
    return [meter for meter in found if meter.cap is not None or meter.used or meter.reserved]


def _all_meters(run: Run | Graph) -> list[Meter]:
    return [
        Meter(
            axis=axis,
            title=title,
            used=getattr(run.used, axis),
            reserved=getattr(run.reserved, axis),
            cap=getattr(run, f"limit_{axis}"),
        )
        for axis, title in _METERED.items()
    ]


@dataclass(frozen=True, kw_only=True)
class Account:
    """Why a run stopped, what it used of each limit, and what was said last (RC061)."""

    stop_reason: str
    sentence: str
    counters: tuple[Meter, ...]
    """Every axis, also those without a cap."""
    last_reasons: tuple[str, ...]
    """Of the last judgment; empty after one that asked for nothing."""


def account(run: Run, item: Escalation | None = None) -> Account | None:
    """The account of a run that ended or waits for a person; None while it goes on.

    `item` is what it asks a person, if the caller has read it anyway.
    """
    status, stop_reason = effective_status(run)
    if status in (RunStatus.QUEUED, RunStatus.RUNNING):
        return None
    return Account(
        stop_reason=str(stop_reason),
        sentence=sentence(run),
        counters=(
            _counter("iterations", "Iterations", run.iterations, run.limit_iterations),
            _counter("errors", "Errors", run.errors, run.limit_errors),
            *_all_meters(run),
            _counter(
                "active_seconds",
                "Seconds of work",
                run.active_ms // 1000,
                run.limit_active_seconds,
            ),
        ),
        last_reasons=tuple(item.packet.get("reasons", ())) if item else _last_reasons(run),
    )


def _counter(axis: str, title: str, used: int, cap: int | None) -> Meter:
    return Meter(axis=axis, title=title, used=used, reserved=0, cap=cap)


def _last_reasons(run: Run) -> tuple[str, ...]:
    judged = run.events.filter(data__has_key="reasons").order_by("-seq").first()
    if judged is None:
        return ()
    if reasons := judged.data["reasons"]:
        return tuple(reasons)
    attempt = run.attempts.filter(no=judged.data["no"]).first()
    return (attempt.feedback,) if attempt and attempt.feedback else ()


def sentence(run: Run) -> str:
    """Why the run is where it is now, and what remains of one that ended without success.

    Empty while it simply goes on.
    """
    status, stop_reason = effective_status(run)
    late = status is not RunStatus(run.status)
    why = SENTENCES[StopReason(stop_reason)] if late else run.sentence
    if status not in TERMINAL or status is RunStatus.SUCCEEDED:
        return why
    return f"{why} {_remains(run)}".strip()


def _remains(run: Run) -> str:
    """What the last judgment asked for; whoever has none of it, has all of it to do."""
    points = [line.strip().removeprefix("- ") for line in (run.feedback or "").splitlines()]
    asked = "; ".join(filter(None, points))
    if len(asked) > REMAINS_CHARACTERS:
        asked = f"{asked[:REMAINS_CHARACTERS]}…"
    if asked:
        return f"What remains: {asked}"
    return "" if run.iterations else "No attempt was judged: all of it remains."


def effective_status(run: Run, now: datetime | None = None) -> tuple[RunStatus, str]:
    """The status that is true now and its stop reason: a deadline holds the moment it passes."""
    status, reason = RunStatus(run.status), run.stop_reason
    if not run.is_terminal and run.deadline_at and run.deadline_at <= (now or clock.now()):
        return RunStatus.BUDGET_EXHAUSTED, StopReason.DEADLINE
    return status, reason


def is_over(run: Run) -> bool:
    """Whether nothing can follow, also where no sweeper has seen the deadline pass."""
    return effective_status(run)[0] in TERMINAL


def item_status(item: Escalation) -> EscalationStatus:
    """Of an item of the gate: once the run's deadline has passed nobody can decide it any more."""
    status = EscalationStatus(item.status)
    if status is EscalationStatus.OPEN and is_over(item.run):
        return EscalationStatus.EXPIRED
    return status


def outcome_words(run: Run) -> str:
    """The status in a word or two."""
    status, reason = effective_status(run)
    if reason == StopReason.ACCEPTED_BY_PERSON:
        return "Accepted by a person"
    if reason == StopReason.QUOTA_SKIPPED:
        return "Passed, quota skipped"
    if waits_for_budget(run):
        return "Waiting for budget"
    words = {
        RunStatus.QUEUED: "Queued",
        RunStatus.RUNNING: "Running",
        RunStatus.AT_GATE: "At the gate",
        RunStatus.SUCCEEDED: "Succeeded",
        RunStatus.BUDGET_EXHAUSTED: "Limit reached",
        RunStatus.ESCALATED: "Closed",
        RunStatus.CANCELLED: "Cancelled",
        RunStatus.FAILED: "Failed",
    }
    return words[status]


def waits_for_budget(run: Run) -> bool:
    """Whether it starts no attempt before its project's next day or a grant (RC077)."""
    return effective_status(run)[0] is RunStatus.QUEUED and run.day_used_up


def tone(run: Run) -> str:
    """The colour class of the status: run, gate, pass, changes, checks or idle."""
    status, reason = effective_status(run)
    if reason == StopReason.QUOTA_SKIPPED:
        return "changes"
    return {
        RunStatus.QUEUED: "idle",
        RunStatus.RUNNING: "run",
        RunStatus.AT_GATE: "gate",
        RunStatus.SUCCEEDED: "pass",
        RunStatus.BUDGET_EXHAUSTED: "changes",
        RunStatus.ESCALATED: "idle",
        RunStatus.CANCELLED: "idle",
        RunStatus.FAILED: "checks",
    }[status]


def is_limit(run: Run) -> bool:
    """Whether a limit stopped it."""
    return bool(run.stop_reason) and StopReason(run.stop_reason) in LIMIT_REASONS


def in_words(axis: str, amount: int) -> str:
    """So much of an axis, as people say it: `$0.50`, `20 model calls`, `90 s of working time`."""
    if axis == "cost_microusd":
        return f"${dollars(amount)}"
    if axis == "active_seconds":
        return f"{amount} s of working time"
    return f"{amount} {axis.replace('_', ' ')}"


def attempts_of(run: Run) -> list[Attempt]:
    """The attempts, oldest first."""
    return list(run.attempts.order_by("no"))


RATED_RUNS = 100
FEWEST_RATED = 3
"""Fewer stopped runs say nothing about a contract."""


@dataclass(frozen=True, kw_only=True)
class CapHits:
    """How many of the last stopped runs of a kind of contract used up their iterations."""

    kind: str
    """The pattern, and for contracts of one's own their builder."""
    hits: int
    stopped: int

    @property
    def always(self) -> bool:
        """It exhausts each time: the cap is too low, or the goal is out of reach (S1-16)."""
        return self.hits == self.stopped >= FEWEST_RATED


def cap_hits(task: Task) -> CapHits:
    """The rate for contracts like the task's, in its project.

    A cap that is hit often is too low for good tasks, or the tasks are not (S0-18).
    """
    alike, kind = Q(task__pattern=task.pattern, task__project=task.project_id), task.pattern
    builder = task.spec_dict.get("builder")
    if builder:
        alike, kind = alike & Q(task__spec__builder=builder), f"{kind} {builder}"
    asked = Escalation.objects.filter(run=OuterRef("pk"), cause=StopReason.ITERATIONS)
    stopped = (
        Run.objects.filter(alike)
        .exclude(status__in=[RunStatus.QUEUED, RunStatus.RUNNING])
        .annotate(hit=Q(stop_reason=StopReason.ITERATIONS) | Exists(asked))
        .order_by("-pk")
        .values_list("hit", flat=True)[:RATED_RUNS]
    )
    hits = list(stopped)
    return CapHits(kind=kind, hits=sum(hits), stopped=len(hits))


_REVIEWED = ("changes requested", "continue", "refactor", "abort")
"""What reviewers say of an attempt, as it stands on an item of the gate."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How often people decided otherwise than the reviewers had said (S2-32)."""

    decided: int
    otherwise: int


def calibration(task: Task) -> Calibration:
    """Of the last decisions on reviewed work of the task's pattern, in its project.

    A reviewer that people overrule often is to be told more, or to be another one.
    """
    decided = Escalation.objects.filter(
        run__task__pattern=task.pattern,
        run__task__project=task.project_id,
        model_said__in=_REVIEWED,
        status=EscalationStatus.DECIDED,
    ).order_by("-pk")[:RATED_RUNS]
    otherwise = [item.overrides or item.decision == Decision.ACCEPT for item in decided]
    return Calibration(decided=len(otherwise), otherwise=sum(otherwise))
