"""The times of a run beside its meters: work done, and what is left until the deadline."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dashboard import display
from loops.models import Graph, Run


@dataclass(frozen=True, kw_only=True)
class Clock:
    """One time in words; `percent` of its cap is used, or it has no cap."""

    title: str
    value: str
    cap: str = ""
    percent: int | None = None
    note: str = ""

    @property
    def heat(self) -> str:
        """`hot` from 95 %, `warm` from 75 %, as on every meter."""
        used = self.percent or 0
        return "hot" if used >= 95 else "warm" if used >= 75 else ""


_NO_DEADLINE = Clock(title="Deadline", value="none", note="it may wait for ever")


def clocks(run: Run, now: datetime) -> list[Clock]:
    """Working time, then the end or the deadline."""
    return [_worked(run), ending(run, now) or _NO_DEADLINE]


def ending(of: Run | Graph, now: datetime) -> Clock | None:
    """When it ended, or what is left until its deadline; None while there is none."""
    if of.ended_at:
        return _ended(of, of.ended_at, now)
    return _deadline(of, of.deadline_at, now) if of.deadline_at else None


def _worked(run: Run) -> Clock:
    cap = run.limit_active_seconds
    return Clock(
        title="Working time",
        value=display.rough(run.active_ms / 1000),
        cap=display.span(cap) if cap else "",
        percent=_percent(run.active_ms / 1000, cap) if cap else None,
        note="waiting for people excluded",
    )


def _deadline(of: Run | Graph, at: datetime, now: datetime) -> Clock:
    whole = (at - of.created_at).total_seconds()
    left = (at - now).total_seconds()
    return Clock(
        title="Deadline",
        value=display.rough(left) if left > 0 else "passed",
        cap=display.rough(whole),
        percent=_percent(whole - left, whole),
        note=f"ends {at:%b %d, %H:%M} UTC",
    )


def _ended(of: Run | Graph, at: datetime, now: datetime) -> Clock:
    distance = display.ago(at, now)
    return Clock(
        title="Ended",
        value="just now" if distance == "now" else f"{distance} ago",
        note=f"{at:%Y-%m-%d %H:%M} UTC, after {display.span(at - of.created_at)}",
    )


def _percent(used: float, cap: float) -> int:
    return max(0, min(100, int(used * 100 / cap))) if cap > 0 else 100
