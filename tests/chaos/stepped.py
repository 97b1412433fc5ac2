"""A Python program whose wall clock is stepped while it runs; its monotonic clock is not.

    python -m tests.chaos.stepped FILE MODULE ARGUMENT...

FILE holds the seconds that the clock is ahead, and may change at any time.
"""

from __future__ import annotations

import runpy
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import time_machine

LOOK_SECONDS = 0.5


def follow(clock: Path) -> None:
    """Keep the wall clock as far ahead as the file says."""
    ahead, travel = 0, None
    waiting = threading.Event()
    while True:
        wanted = int(clock.read_text())
        if wanted != ahead:
            if travel is not None:
                travel.stop()
            ahead = wanted
            travel = time_machine.travel(datetime.now(UTC) + timedelta(seconds=ahead), tick=True)
            travel.start()
        waiting.wait(LOOK_SECONDS)


def main(clock: str, module: str, *arguments: str) -> None:
    """Run the module as the main program."""
    threading.Thread(target=follow, args=(Path(clock),), name="clock", daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
