"""Whether the process lives, and whether the system can work."""

from __future__ import annotations

import redis
from django.db import DatabaseError
from django.db.models.functions import Now
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from dashboard.context import ALIVE
from loops import feed
from loops.models import WorkerPresence


@require_safe
def healthz(_request: HttpRequest) -> JsonResponse:
    """This process answers."""
    return JsonResponse({"status": "ok"})


@require_safe
def readyz(_request: HttpRequest) -> JsonResponse:
    """Database, Redis, and a worker seen within 30 seconds."""
    checks = {"redis": _redis(), **_database()}
    ready = all(checks.values())
    return JsonResponse(
        {"status": "ready" if ready else "not ready", **checks}, status=200 if ready else 503
    )


def _redis() -> bool:
    try:
        return bool(feed.client().ping())
    except redis.RedisError:
        return False


def _database() -> dict[str, bool]:
    try:
        worker = WorkerPresence.objects.filter(kind="worker", seen_at__gte=Now() - ALIVE).exists()
    except DatabaseError:
        return {"database": False, "worker": False}
    return {"database": True, "worker": worker}
