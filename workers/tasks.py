"""What a Celery worker does: one task, and what it says when it comes and goes."""

from __future__ import annotations

import threading
from typing import Any

from celery.signals import worker_ready, worker_shutdown, worker_shutting_down
from django.conf import settings

from workers import presence, sandbox
from workers.app import ITERATE, app
from workers.iteration import run_iteration
from workers.lease import draining
from workers.redis_url import UnsafeRedis, check_policy

_stopped = threading.Event()


@app.task(name=ITERATE)
def iterate(run_id: int, attempt_no: int) -> None:
    """Run one attempt. A message that has nothing to do is a no-op."""
    run_iteration(run_id, attempt_no, worker=presence.own_name())


@worker_ready.connect
def begin(**_kwargs: Any) -> None:
    """Refuse a server that may drop keys, try the sandbox once, say that this worker is there."""
    try:
        check_policy(settings.REDIS_URL)
        label = sandbox.detect(settings.LOOPWARDEN_SANDBOX).label
    except (UnsafeRedis, sandbox.SandboxUnavailable) as error:
        # Celery logs any other exception of a signal and goes on.
        raise SystemExit(str(error)) from error
    presence.keep_announcing("worker", label, _stopped)


@worker_shutting_down.connect
def drain(**_kwargs: Any) -> None:
    """Let attempts stop at their next step and hand their leases back."""
    draining.set()


@worker_shutdown.connect
def end(**_kwargs: Any) -> None:
    """Say that it is gone."""
    _stopped.set()
    presence.leave()
