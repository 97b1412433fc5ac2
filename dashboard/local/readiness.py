"""Whether the worker and the tender have registered themselves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from loops.models import WorkerPresence


def registered_since(moment: datetime) -> Callable[[], bool]:
    """True once both were seen after `moment`; those of an earlier start do not count."""

    def ready() -> bool:
        seen = WorkerPresence.objects.filter(seen_at__gte=moment).values_list("kind", flat=True)
        return {"worker", "tender"} <= set(seen)

    return ready
