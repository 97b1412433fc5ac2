"""Processes of the product in a few milliseconds: forked from one that has imported everything.

Each is a process of its own that can be killed, frozen and thawed; none of them boots Celery. The
messages are those of the real broker, taken as an early acknowledging worker takes them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from multiprocessing import forkserver, get_context
from pathlib import Path
from queue import Empty
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model

from loops import gates
from loops.models import Project
from loops.store.submit import RequestKey
from tests.engine import processes
from workers.app import app
from workers.intake import TaskRequest, accept

_context = get_context("forkserver")


def start_server(**env: str) -> None:
    """Start the process that all others are forked from, once for this test process."""
    kept = dict(os.environ)
    os.environ.clear()
    os.environ.update(processes.environment(PYTHONPATH=str(processes.ROOT), **env))
    try:
        _context.set_forkserver_preload(["tests.engine.warm", __name__])
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(kept)


class Forked:
    """One process that does one thing and ends."""

    def __init__(self, log: Path, act: Callable[..., Any], *args: Any, crash: str = "") -> None:
        env = {"LOOPWARDEN_CRASHPOINT": crash}
        self.process = _context.Process(target=_enter, args=(log, env, act, *args))
        self.process.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process.pid is not None
        return self.process.pid

    def ended(self) -> int:
        """Its exit code; negative for a signal."""
        self.process.join(60)
        assert self.process.exitcode is not None, "it is still running"
        return self.process.exitcode

    def frozen(self) -> bool:
        """Whether a signal has stopped it."""
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "T"

    def thaw(self) -> int:
        """Let it go on, to its end."""
        os.kill(self.pid, signal.SIGCONT)
        return self.ended()


def _enter(log: Path, env: Mapping[str, str], act: Callable[..., Any], *args: Any) -> None:
    os.environ.update(env)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    act(*args)


def work() -> None:
    """Sweep, dispatch and run what the broker hands out, until there is nothing more."""
    from workers import dispatch, sweeper
    from workers.iteration import run_iteration

    while True:
        sweeper.run_pass()
        dispatch.run_pass()
        message = _next_message()
        if message is None:
            return
        run_iteration(*message, worker=f"forked-{os.getpid()}")


def sweep() -> None:
    """One sweep alone."""
    from workers import sweeper

    sweeper.run_pass()


def _next_message() -> tuple[int, int] | None:
    with app.connection_for_read() as broker:
        queue = broker.SimpleQueue(app.conf.task_default_queue, no_ack=True)
        try:
            run_id, attempt_no = queue.get_nowait().payload[0]
        except Empty:
            return None
        finally:
            queue.close()
    return run_id, attempt_no


def submit(request: TaskRequest, key: str) -> None:
    """Take a task in as the API does, with an Idempotency-Key."""
    digest = f"digest of {request.title}"
    accept(
        request,
        project=Project.objects.get(),
        user=None,
        request_key=RequestKey(owner="ada", key=key, request_digest=digest),
        roots=settings.LOOPWARDEN_REPO_ROOTS,
    )


def decide(item_id: int, digest: str, decision: str) -> None:
    """Ada decides, in a web process; a decision that is no longer possible is an error there."""
    ada = get_user_model().objects.get(username="ada")
    gates.decide(item_id, decision=decision, digest=digest, user=ada)
