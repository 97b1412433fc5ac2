"""Makes sure that something works on the queue: what runs already is used, else it is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db.models.functions import Now
from django.utils import timezone

from dashboard.local.readiness import registered_since
from dashboard.local.standard import standard_supervisor
from dashboard.local.supervisor import Supervisor
from loops.models import WorkerPresence
from workers.presence import ALIVE


@contextmanager
def local_stack(say: Callable[[str], object]) -> Iterator[Callable[[], bool]]:
    """Use the workers that are there, or start the local parts and stop them afterwards.

    Yields what says whether they are still there. Raises `CannotStart`.
    """
    if something_works():
        yield something_works
        return
    say("No worker is running: starting one for this task.")
    with standard_supervisor(ready=registered_since(timezone.now())) as supervisor:
        supervisor.wait_ready()

        def alive() -> bool:
            supervisor.check()
            return True

        yield alive


def goes_on() -> str:
    """What becomes of a task when nobody waits for it any more."""
    return "goes on" if something_works() else "goes on as soon as a worker is there again"


def something_works() -> bool:
    """Whether a supervisor of this data folder or a worker anywhere takes up what is queued."""
    if Supervisor.running(settings.DATA_DIR):
        return True
    seen = WorkerPresence.objects.filter(seen_at__gt=Now() - ALIVE).values_list("kind", flat=True)
    return {"worker", "tender"} <= set(seen)
