"""One supervisor per data folder, held by an advisory lock that the kernel drops on any death."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from dashboard.local.errors import AlreadyRunning, CannotStart
from dashboard.local.waiting import until

LOCK_NAME = "supervisor.lock"
# Outlasts `holder` in another process, which takes the lock for a moment to test it.
PATIENCE_SECONDS = 0.3


@dataclass(frozen=True, kw_only=True)
class Running:
    """The supervisor that holds a data folder."""

    pid: int
    address: str


class FolderLock:
    """Held from `acquire` to `release`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_NAME
        self._descriptor = -1

    def acquire(self, address: str) -> None:
        """Raise `AlreadyRunning`, with the holder's pid and address, when it is taken."""
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise CannotStart(f"cannot open {self._path}: {error.strerror}") from error
        if not until(lambda: try_lock(self._descriptor), seconds=PATIENCE_SECONDS):
            self.release()
            raise AlreadyRunning(_refusal(self._path))
        os.ftruncate(self._descriptor, 0)
        record = json.dumps(asdict(Running(pid=os.getpid(), address=address)))
        os.pwrite(self._descriptor, record.encode(), 0)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def holder(folder: Path) -> Running | None:
    """Who holds the folder now. A lock file without a live holder counts for nothing."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR)
    except OSError:
        return None
    try:
        return None if try_lock(descriptor) else _record(folder / LOCK_NAME)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file, or say that somebody has it. Raises `CannotStart` without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise CannotStart(
            f"{LOCK_NAME}: this file system has no locks ({error.strerror})."
            " Set LOOPWARDEN_DATA to a folder on a local disk."
        ) from error
    return True


def _record(path: Path) -> Running:
    try:
        facts = json.loads(path.read_text())
        return Running(pid=int(facts["pid"]), address=str(facts["address"]))
    except (OSError, ValueError, KeyError, TypeError):
        # Taken an instant ago: the holder has not written its name yet.
        return Running(pid=0, address="")


def _refusal(path: Path) -> str:
    other = _record(path)
    who = f"process {other.pid} at {other.address}" if other.pid else "another start"
    return (
        f"Loopwarden already runs on {path.parent}: {who}."
        " Use that one, stop it first, or set LOOPWARDEN_DATA to another folder."
    )
