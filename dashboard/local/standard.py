"""The supervisor of this installation: web server, tender and worker, from the settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from django.conf import settings

from dashboard import environment
from dashboard.local.database import prepare_database
from dashboard.local.supervisor import Child, Supervisor

HOST = "127.0.0.1"
WORKER_GRACE_SECONDS = 15.0


def standard_children(host: str, port: int, pool: int) -> tuple[Child, ...]:
    """In the order in which they stop: no new requests, no new wake-ups, then the work at hand."""
    python = sys.executable
    web = f"-m uvicorn dashboard.asgi:application --host {host} --port {port}"
    web += " --no-access-log --log-level warning --timeout-graceful-shutdown 3"
    worker = f"-m celery -A workers.app worker --pool=threads --concurrency={pool}"
    worker += " --without-gossip --without-mingle --without-heartbeat -n local@%h"
    tend = (python, str(settings.BASE_DIR / "manage.py"), "tend")
    return (
        Child(name="web", argv=(python, *web.split()), grace_seconds=5.0),
        Child(name="tend", argv=tend, grace_seconds=5.0),
        Child(name="worker", argv=(python, *worker.split()), grace_seconds=WORKER_GRACE_SECONDS),
    )


def standard_supervisor(*, ready: Callable[[], bool], port: int | None = None) -> Supervisor:
    """Everything that `make up` runs. `ready` says that a worker has registered itself."""
    chosen = port or settings.PORT
    own_modules = os.environ.get("PYTHONPATH", "")
    return Supervisor(
        settings.DATA_DIR,
        children=standard_children(HOST, chosen, settings.LOOPWARDEN_POOL),
        host=HOST,
        port=chosen,
        redis_url=environment.text("REDIS_URL") or None,
        env={
            # The tender makes the same checks; each takes half a second of the start.
            "CELERY_SKIP_CHECKS": "1",
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "LOOPWARDEN_DATA": str(settings.DATA_DIR),
            "LOOPWARDEN_PORT": str(chosen),
            # The commands work from any folder; their children must find the code from there too,
            # and the operator's own contracts and tools where this process found them.
            "PYTHONPATH": os.pathsep.join(filter(None, (str(settings.BASE_DIR), own_modules))),
            "PYTHONUNBUFFERED": "1",
        },
        prepare=prepare_database,
        ready=ready,
    )
