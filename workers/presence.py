"""Says that a worker or tender is alive, and how its commands are contained."""

from __future__ import annotations

import logging
import os
import socket
import threading
from datetime import timedelta
from functools import cache

from django.db import DatabaseError, connection
from django.db.models.functions import Now

from loops.models import WorkerPresence

log = logging.getLogger(__name__)

ALIVE = timedelta(seconds=30)
_EVERY_SECONDS = 5.0


@cache
def own_name() -> str:
    """This process, as it stands on pages and in events."""
    return f"{socket.gethostname()}-{os.getpid()}"


def announce(kind: str, sandbox: str = "") -> None:
    """Say once that it is there."""
    WorkerPresence.objects.update_or_create(
        name=own_name(),
        defaults={"kind": kind, "sandbox": sandbox, "seen_at": Now()},
        create_defaults={"kind": kind, "sandbox": sandbox, "seen_at": Now(), "started_at": Now()},
    )


def leave() -> None:
    """It shut down in order."""
    WorkerPresence.objects.filter(name=own_name()).delete()


def keep_announcing(kind: str, sandbox: str, stop: threading.Event) -> threading.Thread:
    """Say it every few seconds until `stop` is set."""

    def loop() -> None:
        while True:
            try:
                announce(kind, sandbox)
            except DatabaseError as error:
                log.warning("presence not written: %s", error)
            finally:
                connection.close()
            if stop.wait(_EVERY_SECONDS):
                break

    thread = threading.Thread(target=loop, name="presence", daemon=True)
    thread.start()
    return thread


def alive_here(kind: str) -> bool:
    """Whether one of a kind on this host was seen lately."""
    seen = WorkerPresence.objects.filter(kind=kind, seen_at__gt=Now() - ALIVE)
    return seen.filter(name__startswith=f"{socket.gethostname()}-").exists()
