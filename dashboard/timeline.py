"""A run's attempts with their steps, ready for a page or an answer of the API."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from loops.figures import attempt_tone
from loops.models import Attempt, AttemptStatus, Run, Step, StepKind, StepStatus

LATEST_STEPS = 12
_LABELS = {
    AttemptStatus.RUNNING: "running",
    AttemptStatus.LIMIT: "limit reached",
    AttemptStatus.ESCALATED: "to the gate",
    AttemptStatus.ERROR: "error",
    AttemptStatus.WAITED: "waited",
    AttemptStatus.ABANDONED: "stopped",
    AttemptStatus.JUDGED: "judged",
}
_WORKING = {
    StepKind.MODEL_CALL: "asking",
    StepKind.AGENT_WORK: "working",
    StepKind.CHECK: "checking",
    StepKind.COMMAND: "running",
    StepKind.UNDO: "undoing",
    StepKind.TOOL_CALL: "using a tool",
}


@dataclass(frozen=True, kw_only=True)
class StepLine:
    """One step in words."""

    step: Step

    @property
    def is_command(self) -> bool:
        """Whether it ran a command rather than an agent."""
        return self.step.kind in (StepKind.CHECK, StepKind.COMMAND)

    @property
    def exit_code(self) -> int | None:
        """The command's exit code, once there is one."""
        code = self._result.get("exit_code")
        return code if isinstance(code, int) else None

    @property
    def tone(self) -> str:
        """The colour class."""
        if self.step.status == StepStatus.RUNNING:
            return "run"
        failed = self.step.status in (StepStatus.FAILED, StepStatus.OUTCOME_UNKNOWN)
        if self.is_command:
            return "pass" if self.exit_code == 0 and not failed else "checks"
        return "checks" if failed else "idle"

    @property
    def words(self) -> str:
        """What stands on its pill: `test`, `test exit 1`, `test timed out`."""
        name = self.step.role or self.step.name
        if self.step.status == StepStatus.RUNNING:
            return f"{name} {_WORKING[StepKind(self.step.kind)]}"
        if self.step.status == StepStatus.OUTCOME_UNKNOWN:
            return f"{name} outcome unknown"
        if not self.is_command:
            return f"{name} failed" if self.step.status == StepStatus.FAILED else name
        if self._result.get("timed_out"):
            return f"{name} timed out"
        if self.exit_code is None:
            return f"{name} did not run"
        return f"{name} exit {self.exit_code}" if self.exit_code else name

    @property
    def seconds(self) -> float | None:
        """How long it took."""
        if self.step.ended_at is None:
            return None
        return (self.step.ended_at - self.step.started_at).total_seconds()

    @property
    def _result(self) -> dict[str, Any]:
        return self.step.result if isinstance(self.step.result, dict) else {}


@dataclass(frozen=True, kw_only=True)
class Talk:
    """Calls of one agent in an attempt, as one entry."""

    words: str
    name: str
    times: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class AttemptLine:
    """One attempt with its steps."""

    attempt: Attempt
    steps: list[StepLine] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The judgment, or how it ended."""
        if self.attempt.status == AttemptStatus.JUDGED and self.attempt.label:
            return self.attempt.label
        return _LABELS[AttemptStatus(self.attempt.status)]

    @property
    def tone(self) -> str:
        """The colour class."""
        return attempt_tone(self.attempt)

    @property
    def checks(self) -> list[StepLine]:
        """The steps that ran a command."""
        return [line for line in self.steps if line.is_command]

    @property
    def talk(self) -> list[StepLine]:
        """The steps that asked an agent."""
        kinds = (StepKind.MODEL_CALL, StepKind.AGENT_WORK, StepKind.TOOL_CALL)
        return [line for line in self.steps if line.step.kind in kinds]

    @property
    def agents(self) -> list[Talk]:
        """Who was asked, each once: work with tools can take a hundred calls."""
        found: dict[tuple[str, str], list[StepLine]] = {}
        for line in self.talk:
            if line.step.kind != StepKind.TOOL_CALL:
                found.setdefault((line.words, line.step.name), []).append(line)
        return [
            Talk(
                words=words,
                name=name,
                times=len(lines),
                seconds=sum(line.seconds or 0 for line in lines),
            )
            for (words, name), lines in found.items()
        ]

    @property
    def tools(self) -> int:
        """How often an agent used a tool."""
        return sum(line.step.kind == StepKind.TOOL_CALL for line in self.steps)

    @property
    def latest(self) -> list[StepLine]:
        """The last steps, for an attempt that goes on."""
        return self.steps[-LATEST_STEPS:]

    def seconds(self, now: datetime) -> float:
        """How long it took, or has taken so far."""
        return ((self.attempt.ended_at or now) - self.attempt.started_at).total_seconds()


def timeline(run: Run, *, most: int, before: int | None = None) -> tuple[list[AttemptLine], bool]:
    """The newest attempts first, and whether there are earlier ones. Two queries."""
    attempts = run.attempts.order_by("-no")
    if before:
        attempts = attempts.filter(no__lt=before)
    found = list(attempts[: most + 1])
    shown = found[:most]
    if not shown:
        return [], False
    steps: defaultdict[int, list[StepLine]] = defaultdict(list)
    between = (shown[-1].no, shown[0].no)
    for step in run.steps.filter(attempt_no__range=between).order_by("attempt_no", "seq"):
        steps[step.attempt_no].append(StepLine(step=step))
    lines = [AttemptLine(attempt=attempt, steps=steps[attempt.no]) for attempt in shown]
    return lines, len(found) > most
