"""What a Celery worker does: one task, and what it says when it comes and goes."""

from __future__ import annotations

import threading
from typing import Any

from celery.signals import worker_ready, worker_shutdown, worker_shutting_down
from django.conf import settings

from workers import presence, sandbox
from workers.app import ITERATE, app
from workers.iteration import run_iteration
from workers.lease import draining, heart
from workers.redis_url import UnsafeRedis, check_policy

_stopped = threading.Event()


class Intake:
    """The queue as this worker reads it, or does not while it is drained."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._drained = False

    def heed(self, drained: bool) -> None:
        """Close or open the queue, in the thread that reads it."""
        if drained is not self._drained:
            self._drained = drained
            change = "cancel_task_queue" if drained else "add_task_queue"
            self._consumer.call_soon(getattr(self._consumer, change), app.conf.task_default_queue)


@app.task(name=ITERATE)
def iterate(run_id: int, attempt_no: int) -> None:
    """Run one attempt. A message that has nothing to do is a no-op."""
    run_iteration(run_id, attempt_no, worker=presence.own_name())


@worker_ready.connect
def begin(sender: Any, **_kwargs: Any) -> None:
    """Refuse a server that may drop keys, try the sandbox once, say that this worker is there."""
    try:
        check_policy(settings.REDIS_URL)
        label = sandbox.detect(settings.LOOPWARDEN_SANDBOX).label
    except (UnsafeRedis, sandbox.SandboxUnavailable) as error:
        # Celery logs any other exception of a signal and goes on.
        raise SystemExit(str(error)) from error
    presence.keep_announcing("worker", label, _stopped, Intake(sender).heed)


@worker_shutting_down.connect
def drain(**_kwargs: Any) -> None:
    """Let attempts stop at their next step and hand their leases back, the last after the grace."""
    draining.set()
    grace = threading.Timer(settings.LOOPWARDEN_GRACE_SECONDS, heart.give_up)
    grace.daemon = True
    grace.start()


@worker_shutdown.connect
def end(**_kwargs: Any) -> None:
    """Say that it is gone."""
    _stopped.set()
    presence.leave()
