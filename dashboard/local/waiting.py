"""Waiting for a state that can be observed."""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_SECONDS = 0.02


def until(reached: Callable[[], bool], *, seconds: float) -> bool:
    """Poll until `reached()`; False when `seconds` went by first."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() >= deadline:
            return False
        time.sleep(PAUSE_SECONDS)
    return True
