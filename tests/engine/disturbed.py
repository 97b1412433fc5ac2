"""A process that dies once at a crash point, and all that comes after it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db.models.functions import Now

from loops.crashpoints import MODES, POINTS
from loops.models import Outbox, Reservation, Run
from tests.engine import forked, plan_tasks, processes, rows
from tests.engine.forked import Forked

LEASE_SECONDS = 1
_LATER = 20 * rows.AGO
# What an exception or an exit leaves behind in the database, a kill leaves too.
WAYS = [
    pytest.param(mode, marks=[pytest.mark.once] if mode in ("exit", "raise") else [])
    for mode in MODES
]


def start_server() -> None:
    """The same for all modules: there is one in each test process."""
    forked.start_server(
        LOOPWARDEN_LEASE_SECONDS=str(LEASE_SECONDS),
        LOOPWARDEN_TOOLS=",".join(plan_tasks.TOOLS),
        MODEL_KEY="key",
    )


def rows_of(run: Run) -> tuple[Any, ...]:
    """All that a zombie must not change."""
    run.refresh_from_db()
    steps = run.steps.order_by("attempt_no", "seq").values_list("attempt_no", "seq", "status")
    attempts = run.attempts.order_by("no").values_list("no", "status", "counted", "tree_after")
    end = (run.status, run.stop_reason, run.iterations, run.errors, run.tree, run.lease_token)
    return end, run.used, run.reserved, list(attempts), list(steps)


def family(point: str) -> str:
    """Its name in the table."""
    return "recorded-N" if point.startswith("recorded-") else point


class Disturbed:
    """One process that dies at one point in one way."""

    def __init__(self, log: Path, point: str, mode: str) -> None:
        self._log, self._point, self._mode = log, point, mode
        self._marker = log.with_name(f"died-{point}")
        self._frozen: Forked | None = None

    def dies(self, act: Callable[..., Any] = forked.work, *args: Any) -> None:
        """Let a process do this until it dies at the point."""
        crash = f"{self._point}:{self._mode}@{self._marker}"
        process = Forked(self._log, act, *args, crash=crash)
        if self._mode == "stop":
            processes.until(lambda: self._marker.exists() and process.frozen())
            self._frozen = process
        else:
            assert process.ended() == (-signal.SIGKILL if self._mode == "kill" else 1)
        assert self._marker.exists()

    def time_passes(self) -> None:
        """All that waits for a time out is due; a frozen process really outstays its lease."""
        if self._frozen is not None:
            processes.until(lambda: not _leased().exists())
            if POINTS[family(self._point)].in_transaction:
                self.comes_back()
        _leased().update(lease_expires_at=Now() - rows.AGO)
        Run.objects.filter(admitted_at__isnull=False).update(admitted_at=Now() - _LATER)
        Outbox.objects.update(tried_at=Now() - _LATER)
        Outbox.objects.filter(sent_at__isnull=False).update(sent_at=Now() - _LATER)
        Reservation.objects.update(created_at=Now() - _LATER)

    def comes_back(self) -> None:
        """The zombie, if there is one, goes on with what it was doing, to its end."""
        if self._frozen is not None:
            self._frozen.thaw()
            self._frozen = None

    def others_work(self) -> None:
        """A process that nothing happens to: it sweeps, dispatches and runs attempts."""
        assert Forked(self._log, forked.work).ended() == 0

    def nothing_is_left(self) -> None:
        """No process of a command or a sandbox outlives its worker."""
        processes.until(lambda: not _in_workspaces(), seconds=10)


def _leased() -> Any:
    return Run.objects.filter(status="running", lease_expires_at__gt=Now())


def _in_workspaces() -> list[str]:
    """Command lines and folders of live processes that name a workspace."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().decode("utf-8", "replace")
            line += str((process / "cwd").readlink())
        except OSError:
            continue  # it has just ended
        if f"{settings.DATA_DIR}/runs/" in line:
            found.append(line)
    return found
