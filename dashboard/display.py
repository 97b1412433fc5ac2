"""How values are written on a page."""

from __future__ import annotations

import unicodedata
from datetime import datetime, timedelta

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from loops.core.text import must_show


def marked(text: str) -> SafeString:
    """The text as typed, with what would hide or reorder its neighbours shown by its number."""
    if text.isascii() and text.isprintable():
        return format_html("{}", text)
    parts = [
        format_html(
            '<span class="ctl" title="{}">{}</span>',
            unicodedata.name(char, "control"),
            _number(char),
        )
        if must_show(text, at)
        else format_html("{}", char)
        for at, char in enumerate(text.replace("\r\n", "\n"))
    ]
    return mark_safe("".join(parts))  # noqa: S308 - every part is escaped above


def marked_plain(text: str) -> str:
    """The same where no markup can stand: page titles and tooltips."""
    return "".join(
        f"[{_number(char)}]" if must_show(text, at) else char for at, char in enumerate(text)
    )


def _number(char: str) -> str:
    return f"U+{ord(char):04X}"


def count(number: int) -> str:
    """A count that fits beside a meter: 940, 12k, 1.2M."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if number >= 10 * size:
            return f"{number // size}{letter}"
        if number >= size:
            tenths = number * 10 // size
            return (
                f"{tenths // 10}.{tenths % 10}{letter}"
                if tenths % 10
                else f"{tenths // 10}{letter}"
            )
    return str(number)


def money(microusd: int) -> str:
    """Dollars and cents; under a cent as many digits as it takes."""
    cents, rest = divmod(microusd, 10_000)
    if cents == 0 and rest:
        return "$" + f"{microusd / 1_000_000:.6f}".rstrip("0")
    return f"${(microusd + 5_000) // 10_000 / 100:,.2f}"


def span(length: timedelta | float) -> str:
    """A length of time in its two largest units."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if 0 < seconds < 1:
        return f"{max(1, round(seconds * 1000))} ms"
    whole = max(0, int(seconds))
    for size, unit, smaller, small_unit in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller
            return (
                f"{whole // size} {unit} {rest} {small_unit}" if rest else f"{whole // size} {unit}"
            )
    return f"{whole} s"


def rough(seconds: float) -> str:
    """A length of time for a narrow column: whole minutes from one minute on."""
    return span(seconds if seconds < 60 else int(seconds) // 60 * 60)


def ago(moment: datetime, now: datetime) -> str:
    """How long ago, in one unit."""
    seconds = int((now - moment).total_seconds())
    if seconds < 5:
        return "now"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return "now"


_CAUSES = {
    "iterations": ("Round cap reached", "gate"),
    "model_calls": ("Call limit reached", "gate"),
    "tool_calls": ("Tool call limit reached", "gate"),
    "tokens": ("Token limit reached", "gate"),
    "cost": ("Cost limit reached", "gate"),
    "errors": ("Too many errors", "checks"),
    "active_seconds": ("Working time used", "gate"),
    "worker_lost": ("Worker lost", "checks"),
    "refusal": ("Model declined", "checks"),
    "reviewer_invalid_verdict": ("No valid verdict", "checks"),
    "coder_unusable_answer": ("No usable code", "checks"),
    "goal_change": ("Goal change proposed", "refactor"),
    "authority": ("Outside its authority", "gate"),
    "evaluator": ("Evaluator asks", "gate"),
    "hook_failed": ("Commit hook refuses", "checks"),
    "workspace": ("Workspace broken", "checks"),
    "reviewer_abort": ("Reviewer stops it", "refactor"),
    "yield": ("Paused for you", "gate"),
    "agent_unusable": ("Agent set up wrong", "checks"),
    "no_progress": ("Same action again", "changes"),
    "repeated_finding": ("Same finding again", "changes"),
    "same_failure": ("Same failure again", "changes"),
    "spend_without_change": ("Nothing changes", "changes"),
    "back_and_forth": ("Back and forth", "changes"),
    "polls": ("Check never ready", "checks"),
    "governor": ("Governor decides", "gate"),
    "project_day": ("Day's budget used", "gate"),
    "no_change": ("No fix changed anything", "changes"),
}


def cause_pill(cause: str) -> tuple[str, str]:
    """The cause of a gate item in two or three words, and its colour class."""
    return _CAUSES.get(cause, (cause.replace("_", " ").capitalize(), "gate"))
