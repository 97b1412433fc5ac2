"""Log files of the children: appended to, rotated at start, quoted in errors."""

from __future__ import annotations

import os
from pathlib import Path

from dashboard.local.errors import CannotStart

ROTATE_BYTES = 5_000_000
TAIL_BYTES = 8_192


def private_folder(folder: Path) -> Path:
    """Make the folder for its owner alone. Raises `CannotStart` when it cannot be written to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error.strerror) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unwritable(folder, "Permission denied")
    return folder


def _unwritable(folder: Path, why: str | None) -> CannotStart:
    return CannotStart(
        f"cannot write to {folder}: {why}. Make it writable, or set LOOPWARDEN_DATA to another"
        " folder."
    )


def rotate(log: Path, *, limit: int = ROTATE_BYTES) -> None:
    """Set a log aside as `NAME.log.1` when it is larger than `limit` bytes."""
    if log.exists() and log.stat().st_size > limit:
        log.replace(log.with_name(f"{log.name}.1"))


def tail(log: Path, *, lines: int = 15) -> str:
    """The last lines, indented for an error message; empty when there are none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:])
