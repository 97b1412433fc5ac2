"""Bare rows for engine tests, and threads that start together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import redis
from django.db import connection, transaction
from django.db.models.functions import Now

from loops import feed
from loops.core.lifecycle import RunStatus
from loops.core.limits import Amount, Limits
from loops.models import (
    AttemptStatus,
    Budget,
    Graph,
    OnLimit,
    ProjectDay,
    Reservation,
    Run,
    Task,
)
from loops.store import attempts, ledger
from loops.store.submit import start_run
from tests.engine import scenes
from workers import budgets

T = TypeVar("T")

AGO = timedelta(seconds=5)


def queued(
    slug: str = "default",
    *,
    agents: dict[str, str] | None = None,
    priority: int = 0,
    on_limit: str = OnLimit.GATE,
    limits: dict[str, int] | None = None,
    **facts: Any,
) -> Run:
    """A run that waits for its slots; `facts` are written to its row."""
    task = Task.objects.create(
        project=scenes.project(slug),
        pattern="coder_reviewer",
        title="task",
        local_aim="task",
        spec={"task": "Write it."},
        agents=agents or {},
        limits=Limits(**{"iterations": 3, **(limits or {})}).as_dict(),
        on_limit=on_limit,
        priority=priority,
    )
    with transaction.atomic():
        run = start_run(task, user=None)
    return change(run, **facts)


def change(run: Run, **facts: Any) -> Run:
    """Write to the row as something outside of the attempt would, and read it again."""
    if facts:
        Run.objects.filter(pk=run.pk).update(**facts)
    run.refresh_from_db()
    return run


def admitted(slug: str = "default", **facts: Any) -> Run:
    """A run whose next attempt may be claimed."""
    return queued(slug, **{"admitted_at": Now(), "next_at": Now() - AGO, **facts})


def claimed(slug: str = "default", **facts: Any) -> tuple[Run, attempts.Claim]:
    """A run with a worker on its first attempt."""
    run = admitted(slug, **facts)
    return run, take(run)


def take(run: Run, worker: str = "worker-1") -> attempts.Claim:
    """Claim the run's next attempt, which must be possible."""
    run.refresh_from_db()
    claim = attempts.claim(run.pk, run.attempt_no, worker=worker)
    assert claim is not None
    run.refresh_from_db()
    return claim


def lose_lease(run: Run) -> Run:
    """The worker has not been heard of for longer than its lease."""
    return change(run, lease_expires_at=Now() - AGO)


def lost_and_taken_back(run: Run) -> Run:
    """The worker died and the sweeper put the attempt into the queue again, admitted."""
    assert attempts.take_back(lose_lease(run))
    return change(run, admitted_at=Now(), next_at=Now() - AGO)


def ending(status: RunStatus = RunStatus.QUEUED, **facts: Any) -> attempts.Conclusion:
    """What an attempt came to: one judged round."""
    usual = {"attempt_status": AttemptStatus.JUDGED, "counted": True, "label": "judged"}
    return attempts.Conclusion(status=status, **{**usual, **facts})


def call(seq: int = 1) -> ledger.StepCall:
    """A model call as a step."""
    return ledger.StepCall(seq=seq, kind="model_call", role="coder", name="agent", digest="d")


def answer(**facts: Any) -> ledger.StepResult:
    """The step's result; nothing is known of its usage unless it is said."""
    return ledger.StepResult(**{"status": "done", "result": {}, **facts})


def sent(claim: attempts.Claim, worst: Amount, seq: int = 1) -> int:
    """A reservation whose call is on its way."""
    reservation = ledger.reserve(claim, call(seq), worst)
    assert ledger.send(reservation)
    return reservation


def states(run: Run) -> list[str]:
    """The ledger of the run, oldest first."""
    return list(Reservation.objects.filter(run=run).order_by("id").values_list("state", flat=True))


def counters(row: Budget) -> dict[str, int]:
    """The four counters of a run, graph or day in Redis, without the open reservations."""
    found: dict[bytes, bytes] = feed.client().hgetall(budgets.key_of(scope(row)))  # type: ignore[assignment]
    return {k.decode(): int(v) for k, v in found.items() if not k.startswith(b"r:")}


def scope(row: Budget) -> ledger.Scope:
    """The row as a scope of the ledger."""
    return ledger.Scope({Run: "run", Graph: "graph", ProjectDay: "day"}[type(row)], row.pk)


def nowhere() -> redis.Redis:
    """A client whose server is away."""
    return redis.Redis(unix_socket_path="/nonexistent/valkey.sock", socket_connect_timeout=0.2)


def together(count: int, act: Callable[[int], T]) -> list[T | Exception]:
    """Call `act` in so many threads at the same moment; what one raises is its answer."""
    barrier = threading.Barrier(count)

    def one(number: int) -> T | Exception:
        try:
            barrier.wait(30)
            return act(number)
        except Exception as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))
