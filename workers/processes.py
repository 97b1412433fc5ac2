"""I11: which commands of attempts are alive on this host, and which of them should not be.

Every command carries its attempt's mark in its environment, as does what it starts. A command may
clear its environment; the process that watches over it keeps the mark.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import connection

from loops.core.lifecycle import RunStatus
from loops.invariants import Violation
from loops.models import Run

_NAME = "LOOP_ATTEMPT"
_RULE = "No command is alive whose attempt is not."


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process of an attempt. A process id may come again: its start tells them apart."""

    pid: int
    started: str
    run_id: int
    token: int


def mark(run_id: int, token: int) -> dict[str, str]:
    """The environment by which a command's processes are found again."""
    return {_NAME: f"{_database()}:{run_id}:{token}"}


def check(*, patience: float | None = None) -> list[Violation]:
    """Processes whose run and token are not live, on two looks `patience` seconds apart.

    A worker needs up to a third of a lease to hear that it lost it; that is the usual patience.
    """
    first = _stale()
    if not first:
        return []
    time.sleep(settings.LOOPWARDEN_LEASE_SECONDS / 3 + 2 if patience is None else patience)
    return [
        Violation(
            code="I11",
            subject=f"run {process.run_id}",
            rule=_RULE,
            found=f"has process {process.pid} under token {process.token}, which is not live",
        )
        for process in sorted(first & _stale(), key=lambda process: process.pid)
    ]


def _stale() -> set[Process]:
    found = list(_marked())
    running = Run.objects.filter(
        pk__in={process.run_id for process in found}, status=RunStatus.RUNNING
    )
    live = set(running.values_list("pk", "lease_token"))
    return {process for process in found if (process.run_id, process.token) not in live}


def _marked() -> Iterator[Process]:
    wanted = f"{_NAME}={_database()}:".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            # The name in the second field may hold spaces and brackets.
            started = (folder / "stat").read_text().rpartition(")")[2].split()[19]
        except (OSError, IndexError):
            continue  # ended meanwhile, or another user's
        for variable in variables:
            if variable.startswith(wanted):
                run_id, _, token = variable.removeprefix(wanted).decode().partition(":")
                yield Process(
                    pid=int(folder.name), started=started, run_id=int(run_id), token=int(token)
                )


def _database() -> str:
    """Several installations may share a host, and the runs of each are numbered from 1."""
    facts = connection.settings_dict
    place = "|".join(str(facts[key]) for key in ("HOST", "PORT", "NAME"))
    return hashlib.sha256(place.encode()).hexdigest()[:12]
