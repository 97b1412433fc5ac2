"""Runs one tool in bounded time, and says no more of its outcome than is known (S2-26)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from django.conf import settings

from loops.core.text import clean
from loops.core.tooling import ToolStatus
from workers.agents.base import CallCancelled
from workers.filetools import ToolError
from workers.lease import Lease

MOST_CHARACTERS = 200_000
_POLL_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Said:
    """What came of running a tool, before anything is stored."""

    status: ToolStatus
    text: str
    error_code: str = ""


def seconds_for(lease: Lease) -> float:
    """How long one tool may take."""
    return float(min(lease.seconds_left, settings.LOOPWARDEN_COMMAND_SECONDS))


def bounded(
    run: Callable[[], str], lease: Lease, *, traces: bool, most_seconds: float = math.inf
) -> Said:
    """Run a tool of ours in a thread of its own, and wait no longer than it may take.

    Only a `ToolError` says that nothing was done. Any other end of a tool that leaves traces, time
    out included, proves nothing (S2-26). Raises `CallCancelled` when the attempt must stop and the
    tool may simply be used again.
    """
    found: list[Said] = []
    thread = threading.Thread(target=lambda: found.append(_run(run, traces)), daemon=True)
    thread.start()
    left = min(seconds_for(lease), most_seconds)
    while thread.is_alive() and left > 0 and not lease.lost.is_set():
        thread.join(_POLL_SECONDS)
        left -= _POLL_SECONDS
    if lease.lost.is_set() and not traces:
        raise CallCancelled
    if found:
        return found[0]
    status = ToolStatus.OUTCOME_UNKNOWN if traces else ToolStatus.FAILED
    return Said(status=status, text="It did not end in time.", error_code="timeout")


def _run(run: Callable[[], str], traces: bool) -> Said:
    try:
        return Said(status=ToolStatus.COMPLETED, text=clean(str(run()))[:MOST_CHARACTERS])
    except ToolError as error:
        return Said(status=ToolStatus.FAILED, text=clean(str(error)), error_code="tool_error")
    except Exception as error:
        status = ToolStatus.OUTCOME_UNKNOWN if traces else ToolStatus.FAILED
        code = type(error).__name__
        return Said(status=status, text=clean(f"{code}: {error}"), error_code=code)
