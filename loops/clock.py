"""The database's clock, for what is shown: one truth, whatever this host's time of day says."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from loops.statements import fetch

_KEPT_SECONDS = 60.0
_read: tuple[datetime, float] | None = None
"""What the database said, and when on the monotonic clock."""


def now() -> datetime:
    """The database's time: asked once a minute, counted on by the monotonic clock in between.

    What is decided, not only shown, compares in SQL.
    """
    global _read  # noqa: PLW0603 - one reading for the process
    if _read is None or time.monotonic() - _read[1] > _KEPT_SECONDS:
        asked = time.monotonic()  # before: a slow answer must not let this clock lag
        row = fetch("clock", {})
        assert row is not None  # noqa: S101 - a SELECT without FROM has one row
        _read = datetime.fromtimestamp(row[0], UTC), asked
    return _read[0] + timedelta(seconds=time.monotonic() - _read[1])
