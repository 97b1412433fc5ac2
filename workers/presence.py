"""Says that a worker or tender is alive, and how its commands are contained."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import cache

from django.db import DatabaseError, connection
from django.db.models.functions import Now

from loops.models import WorkerPresence

log = logging.getLogger(__name__)

ALIVE = timedelta(seconds=30)
EVERY_SECONDS = 2.0


@cache
def own_name() -> str:
    """This process, as it stands on pages and in events."""
    return f"{socket.gethostname()}-{os.getpid()}"


def announce(kind: str, sandbox: str = "") -> bool:
    """Say once that it is there. Returns whether it is to take nothing new."""
    own, _ = WorkerPresence.objects.update_or_create(
        name=own_name(),
        defaults={"kind": kind, "sandbox": sandbox, "seen_at": Now()},
        create_defaults={"kind": kind, "sandbox": sandbox, "seen_at": Now(), "started_at": Now()},
    )
    return own.drained_at is not None


def drain(name: str) -> bool:
    """Let a worker take nothing new. False: there is no such worker."""
    return _set_drained(name, Now())


def undrain(name: str) -> bool:
    """Let it take new attempts again. False: there is no such worker."""
    return _set_drained(name, None)


def _set_drained(name: str, since: Now | None) -> bool:
    return bool(WorkerPresence.objects.filter(name=name, kind="worker").update(drained_at=since))


def leave() -> None:
    """It shut down in order."""
    WorkerPresence.objects.filter(name=own_name()).delete()


def keep_announcing(
    kind: str,
    sandbox: str,
    stop: threading.Event,
    heed: Callable[[bool], None] = lambda _drained: None,
) -> threading.Thread:
    """Say it every few seconds until `stop` is set, and pass on whether it is drained."""

    def loop() -> None:
        while True:
            try:
                heed(announce(kind, sandbox))
            except DatabaseError as error:
                log.warning("presence not written: %s", error)
            finally:
                connection.close()
            if stop.wait(EVERY_SECONDS):
                break

    thread = threading.Thread(target=loop, name="presence", daemon=True)
    thread.start()
    return thread


def alive_here(kind: str) -> bool:
    """Whether one of a kind on this host was seen lately."""
    seen = WorkerPresence.objects.filter(kind=kind, seen_at__gt=Now() - ALIVE)
    return seen.filter(name__startswith=f"{socket.gethostname()}-").exists()
