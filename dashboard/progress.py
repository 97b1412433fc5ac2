"""Follows runs on the terminal: one line per iteration, a table at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from loops.core.errors import LoopwardenError
from loops.core.lifecycle import RunStatus
from loops.core.money import dollars
from loops.core.text import one_line
from loops.figures import effective_status, outcome_words, sentence
from loops.models import Event, Run

_POLL_SECONDS = 0.2

USAGE_ERROR = 2
INTERRUPTED = 130
EXIT_CODES: dict[RunStatus, int] = {
    RunStatus.SUCCEEDED: 0,
    RunStatus.FAILED: 1,
    RunStatus.BUDGET_EXHAUSTED: 3,
    RunStatus.AT_GATE: 4,
    RunStatus.ESCALATED: 4,
    RunStatus.CANCELLED: 5,
}


class Stopped(LoopwardenError):
    """What keeps the runs going has stopped."""


def follow(
    run_ids: Sequence[int], say: Callable[[str], None], *, alive: Callable[[], bool]
) -> list[Run]:
    """Print a line per event until every run has ended or waits for a person.

    Returns the runs in the given order. Raises `Stopped` when `alive` turns false before that.
    """
    seen = dict.fromkeys(run_ids, 0)
    while True:
        settled = all(_is_settled(run) for run in _runs(run_ids))
        for event in _events(run_ids, seen):
            seen[event.run_id] = event.seq
            say(_line(event))
        if settled:
            return _runs(run_ids)
        if not alive():
            raise Stopped
        time.sleep(_POLL_SECONDS)


def table(runs: Sequence[Run]) -> list[str]:
    """Task, pattern, iterations used of allowed, outcome, reason and spend, aligned."""
    rows = [("Task", "Pattern", "Iterations", "Outcome", "Spend", "Reason")]
    for run in runs:
        rows.append(
            (
                run.task.key,
                run.task.pattern,
                f"{run.iterations} of {run.limit_iterations}",
                outcome_words(run),
                f"${dollars(run.used.cost_microusd)}",
                one_line(sentence(run)),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]])
        for row in rows
    ]


def _runs(run_ids: Sequence[int]) -> list[Run]:
    found = Run.objects.select_related("task").in_bulk(run_ids)
    return [found[run_id] for run_id in run_ids]


def _is_settled(run: Run) -> bool:
    return effective_status(run)[0] not in (RunStatus.QUEUED, RunStatus.RUNNING)


def _events(run_ids: Sequence[int], seen: dict[int, int]) -> list[Event]:
    events = Event.objects.select_related("run__task").filter(
        run__in=run_ids, seq__gt=min(seen.values())
    )
    events = events.exclude(kind="delivery_ignored")
    fresh = [event for event in events if event.seq > seen[event.run_id]]
    return sorted(fresh, key=lambda event: (event.created_at, event.run_id, event.seq))


def _line(event: Event) -> str:
    clock = event.created_at.strftime("%H:%M:%S")
    task = event.run.task
    return f"{clock}  {task.key}  {task.pattern:<15} {one_line(event.text)}"
