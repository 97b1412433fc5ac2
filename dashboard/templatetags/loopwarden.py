"""Tags for what stands on every page: rail, meter, pill, money and time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from dashboard import display
from loops import clock as database_clock
from loops import figures
from loops.core.graph import Signal
from loops.core.lifecycle import RunStatus
from loops.graph_figures import SIGNALS
from loops.models import Attempt, OnLimit, Run

register = template.Library()


@register.filter
def shown(text: object) -> SafeString:
    """User text as typed, with invisible characters made visible."""
    return display.marked(str(text))


@register.filter
def plain(text: object) -> str:
    """The same where only text can stand."""
    return display.marked_plain(str(text))


@register.filter
def usd(microusd: int) -> str:
    """Micro-dollars for people."""
    return display.money(microusd)


@register.filter
def brief(number: int) -> str:
    """A count in a few characters."""
    return display.count(number)


@register.filter
def span(length: timedelta | float) -> str:
    """A length of time."""
    return display.span(length)


@register.filter
def span_ms(milliseconds: int) -> str:
    """A length of time given in milliseconds."""
    return display.span(milliseconds / 1000)


@register.filter
def since(end: datetime, start: datetime) -> str:
    """The length of time between two moments."""
    return display.span(end - start)


@register.simple_tag
def ago(moment: datetime | None) -> SafeString | str:
    """A moment as its distance from now; the exact time is in the tooltip."""
    if moment is None:
        return ""
    return _time(moment, display.ago(moment, database_clock.now()))


@register.simple_tag
def clock(moment: datetime | None) -> SafeString | str:
    """A moment as a time of day."""
    return "" if moment is None else _time(moment, f"{moment:%H:%M:%S}")


@register.simple_tag
def moment(at: datetime | None) -> SafeString | str:
    """A moment in full."""
    return "" if at is None else _time(at, f"{at:%Y-%m-%d %H:%M} UTC")


@register.inclusion_tag("dashboard/parts/rail.html")
def rail(run: Run, attempts: list[Attempt], on_limit: str, size: str = "") -> dict[str, Any]:
    """The rail of a run: its slots, and the gate or the wall at the end."""
    slots = figures.rail(run, attempts)
    before = run.iterations - sum(slot.counted for slot in slots)
    return {
        "slots": slots,
        "before": before,
        "after": run.limit_iterations - before - len(slots),
        "used": run.iterations + any(slot.tone == "run" for slot in slots),
        "allowed": run.limit_iterations,
        "ends_in_gate": on_limit == OnLimit.GATE,
        "at_gate": figures.effective_status(run)[0] is RunStatus.AT_GATE,
        "size": size,
        "many": len(slots) > 8,
    }


@register.inclusion_tag("dashboard/parts/meter.html")
def meter(of: figures.Meter) -> dict[str, Any]:
    """One meter."""
    write = display.money if of.axis == "cost_microusd" else display.count
    return {
        "meter": of,
        "used": write(of.used),
        "cap": None if of.cap is None else write(of.cap),
        "reserved": write(of.reserved) if of.reserved else "",
        "held_until": of.used_percent + of.reserved_percent,
    }


@register.simple_tag
def counted(of: figures.Meter) -> str:
    """What was used of a limit, in words."""
    write = display.money if of.axis == "cost_microusd" else display.count
    return (
        f"{write(of.used)} of {write(of.cap)}"
        if of.cap is not None
        else (f"{write(of.used)}, no limit")
    )


@register.inclusion_tag("dashboard/parts/pill.html")
def pill(words: str, tone: str) -> dict[str, str]:
    """Colour, shape and word together."""
    return {"words": words, "tone": tone}


@register.inclusion_tag("dashboard/parts/pill.html")
def run_pill(run: Run) -> dict[str, str]:
    """The status of a run."""
    words = figures.outcome_words(run)
    if run.cancel_requested and not figures.is_over(run):
        words = "Cancelling"
    return {"words": words, "tone": figures.tone(run)}


@register.inclusion_tag("dashboard/parts/pill.html")
def cause_pill(cause: str) -> dict[str, str]:
    """Why an item is at the gate."""
    words, tone = display.cause_pill(cause)
    return {"words": words, "tone": tone}


@register.inclusion_tag("dashboard/parts/pill.html")
def signal_pill(signal: str) -> dict[str, str]:
    """What a node said to its graph."""
    words, tone = SIGNALS[Signal(signal)]
    return {"words": words, "tone": tone}


def _time(at: datetime, text: str) -> SafeString:
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        at.strftime("%Y-%m-%d %H:%M:%S UTC"),
        text,
    )
