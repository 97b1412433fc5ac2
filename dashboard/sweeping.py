"""The web process sweeps too: it and the database alone make every deadline final."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from django.db import DatabaseError, connection

from workers import sweeper
from workers.tend import SWEEP_SECONDS

if TYPE_CHECKING:
    from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, LifespanScope

log = logging.getLogger(__name__)


async def lifespan(
    _scope: LifespanScope, receive: ASGIReceiveCallable, send: ASGISendCallable
) -> None:
    """ASGI's word for the start and the end of the process: sweep in between."""
    stop = threading.Event()
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            threading.Thread(target=sweep, args=[stop], name="sweeper", daemon=True).start()
            await send({"type": "lifespan.startup.complete"})
        else:
            stop.set()
            await send({"type": "lifespan.shutdown.complete"})
            return


def sweep(stop: threading.Event) -> None:
    """One pass every few seconds, as the tender's, until `stop`."""
    while not stop.wait(SWEEP_SECONDS):
        try:
            sweeper.run_pass()
        except DatabaseError as error:
            log.warning("not swept, the database did not answer: %s", error)
        finally:
            connection.close()
