"""How long a small project waits beside one with a long queue, against how long it waits alone.

    python -m tests.servers python -m benchmarks.fairness     PostgreSQL and Redis
    python -m benchmarks.fairness                             SQLite and the embedded Valkey

Real rows, dispatcher and slots; a worker is a thread that claims, checks its slots, works for
`--seconds` and finishes. Each pair runs in one process, so its ratio holds on any machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

from django.conf import settings
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import get_runner

from dashboard.local.valkey import ValkeyServer
from loops import admission, feed
from loops.core.lifecycle import RunStatus, StopReason
from loops.core.limits import Limits
from loops.models import Attempt, AttemptStatus, Lane, Project, Run, Task
from loops.store import attempts
from workers import dispatch, newcomers, slots

ITERATIONS = 3


def main() -> None:
    """Print one line per pair, the median ratio and the largest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queued", type=int, default=10_000)
    parser.add_argument("--small", type=int, default=10)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--pairs", type=int, default=3)
    given = parser.parse_args()
    settings.LOOPWARDEN_SLOTS = given.slots
    ratios = []
    print("pair  alone p95  beside p95  ratio   (seconds until the first iteration begins)")
    with servers():
        for pair in range(1, given.pairs + 1):
            alone = p95(waits(0, given.small, given.seconds))
            beside = p95(waits(given.queued, given.small, given.seconds))
            ratios.append(beside / alone)
            print(f"{pair:4}  {alone:9.2f}  {beside:10.2f}  {ratios[-1]:5.2f}", flush=True)
    print(f"median ratio {median(ratios):.2f}, largest {max(ratios):.2f}, goal 2.00 or less")


@contextmanager
def servers() -> Iterator[None]:
    """A test database, and a Valkey unless there is a Redis."""
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        if not os.environ.get("REDIS_URL"):
            settings.REDIS_URL = stack.enter_context(ValkeyServer(Path(folder))).url
        runner = get_runner(settings)(verbosity=0, interactive=False)
        old = runner.setup_databases()
        if connection.vendor == "sqlite":
            connection.cursor().execute("PRAGMA journal_mode=WAL")
        yield
        runner.teardown_databases(old)


def waits(queued: int, small: int, seconds: float) -> list[float]:
    """Seconds that each run of the small project waited; `queued` runs were there before it."""
    for model in (Attempt, Run, Task, Lane, Project):
        model.objects.all().delete()
    feed.client().flushall()
    submit("large", queued)
    with connection.cursor() as cursor:
        # A database that has run for a while knows its tables.
        cursor.execute("ANALYZE")
    ended = threading.Event()
    threads = [
        threading.Thread(target=work, args=(seconds, ended))
        for _ in range(settings.LOOPWARDEN_SLOTS)
    ]
    for thread in threads:
        thread.start()
    if queued:
        # Until the long queue has used its own credit: it is no newcomer any more.
        used = (newcomers.ROUNDS + 1) * settings.LOOPWARDEN_SLOTS
        wait_until(lambda: Attempt.objects.count() >= used)
    runs = submit("small", small)
    mine = Run.objects.filter(pk__in=[run.pk for run in runs])
    wait_until(lambda: not mine.filter(started_at__isnull=True).exists())
    ended.set()
    for thread in threads:
        thread.join()
    return sorted((run.started_at - run.created_at).total_seconds() for run in mine)  # type: ignore[operator] # all have started


def submit(slug: str, count: int) -> list[Run]:
    """So many queued runs of a project."""
    project = Project.objects.create(slug=slug, name=slug)
    lane = Lane.objects.create(project=project)
    facts = {"pattern": "one_pass", "title": slug, "local_aim": slug, "on_limit": "stop"}
    tasks = Task.objects.bulk_create(
        [Task(project=project, spec={}, limits={}, **facts) for _ in range(count)], batch_size=500
    )
    caps = {f"limit_{k}": v for k, v in Limits(iterations=ITERATIONS).as_dict().items()}
    del caps["limit_deadline_seconds"]
    return Run.objects.bulk_create(
        [Run(task=task, lane=lane, next_at=Now(), **caps) for task in tasks], batch_size=500
    )


def work(seconds: float, ended: threading.Event) -> None:
    """One worker thread: whatever is admitted, until `ended`."""
    while not ended.is_set():
        dispatch.admit_waiting()
        found = admission.holding().filter(status=RunStatus.QUEUED).select_related("task__project")
        run = found.order_by("?").first()
        claim = run and attempts.claim(
            run.pk, run.attempt_no, worker=threading.current_thread().name
        )
        if run is None or claim is None:
            ended.wait(0.01)
            continue
        scopes = admission.scopes_of(run, {})
        if slots.begin(claim, scopes) is not None:
            attempts.hand_back(claim, why="no slot")
            continue
        connection.close()
        time.sleep(seconds)
        last = run.iterations + 1 == ITERATIONS
        attempts.finish(claim, ending(last=last))
        slots.release(slots.holder(run.pk, claim.token), scopes)
    connection.close()


def ending(*, last: bool) -> attempts.Conclusion:
    """What an iteration comes to."""
    return attempts.Conclusion(
        status=RunStatus.SUCCEEDED if last else RunStatus.QUEUED,
        stop_reason=StopReason.ACCEPTED if last else None,
        attempt_status=AttemptStatus.JUDGED,
        counted=True,
        label="judged",
    )


def wait_until(holds: Callable[[], bool]) -> None:
    """Look often until it holds."""
    while not holds():
        time.sleep(0.02)


def p95(values: list[float]) -> float:
    """The 95th percentile."""
    return quantiles(values, n=20, method="inclusive")[-1]


if __name__ == "__main__":
    main()
