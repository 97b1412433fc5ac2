"""Real worker and tender processes on the test's own database and Valkey."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection

ROOT = Path(__file__).resolve().parent.parent.parent
LEASE_SECONDS = 2


def environment(**more: str) -> dict[str, str]:
    """What a process of the product needs to work on the test's data."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LOOPWARDEN_")}
    return {
        **kept,
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
        "DATABASE_URL": database_url(),
        "REDIS_URL": settings.REDIS_URL,
        "LOOPWARDEN_DATA": str(settings.DATA_DIR),
        "LOOPWARDEN_REPO_ROOTS": "/",
        "LOOPWARDEN_LEASE_SECONDS": str(LEASE_SECONDS),
        **more,
    }


def database_url() -> str:
    """The test database, as another process finds it."""
    facts = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{facts['NAME']}"
    host = facts["HOST"].replace("/", "%2F")
    return f"postgres://{facts['USER']}:{facts['PASSWORD']}@{host}:{facts['PORT']}/{facts['NAME']}"


class Running:
    """One process whose output is kept for a failing test."""

    def __init__(self, argv: list[str], log: Path, env: dict[str, str]) -> None:
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            argv, cwd=ROOT, env=env, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def kill(self) -> None:
        """As an out-of-memory killer would."""
        self.process.kill()
        self.process.wait(20)

    def stop(self) -> None:
        """In order, and for certain."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()


@contextmanager
def worker(log: Path, **env: str) -> Iterator[Running]:
    """A real Celery worker."""
    argv = [sys.executable, "-m", "celery", "-A", "workers.app", "worker", "--pool=threads"]
    argv += ["--concurrency=8", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    argv += ["-n", f"w{time.monotonic_ns()}@%h", "--loglevel=INFO"]
    yield from _run(argv, log, environment(**env))


@contextmanager
def tender(log: Path, **env: str) -> Iterator[Running]:
    """A real dispatcher and sweeper."""
    yield from _run([sys.executable, "manage.py", "tend"], log, environment(**env))


def _run(argv: list[str], log: Path, env: dict[str, str]) -> Iterator[Running]:
    running = Running(argv, log, env)
    try:
        yield running
    finally:
        running.stop()


def until(holds: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for an observable state; the answer is the first that is true."""
    deadline = time.monotonic() + seconds
    while not (answer := holds()):
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.05)
    return answer
