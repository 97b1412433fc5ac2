"""`manage.py tend`: run the dispatcher and the sweeper."""

from __future__ import annotations

import signal
import threading
from typing import Any

from loops.terminal import TerminalCommand
from workers.tend import tend


class Command(TerminalCommand):
    """Admits waiting runs, publishes their wake-ups and finds what got lost."""

    help = "Run the dispatcher and the sweeper until SIGTERM. Several copies may run."

    def handle(self, *_args: Any, **_options: Any) -> None:
        """Run until SIGTERM or SIGINT."""
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        tend(stop)
