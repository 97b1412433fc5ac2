"""`make chaos RUNS=1000 SEED=7`: the real product under faults, judged by the books of others.

    python -m tests.chaos RUNS SEED

Exit status 0: every claim held. 1: one did not; logs, books and a database dump stay. It needs
Linux and PostgreSQL's programs. Root may mount a small file system and really fill it.
"""

from __future__ import annotations

import ctypes
import logging
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import django

from dashboard.local.errors import CannotStart
from tests.chaos.stack import Stack

PR_SET_CHILD_SUBREAPER = 36


def main(count: int, seed: int) -> int:
    """Run and print; the exit status."""
    # Whatever loses its parent below us becomes our child, so no orphan can hide.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    logging.basicConfig(level=logging.ERROR)
    folder = Path(tempfile.mkdtemp(prefix="lw-chaos-"))
    folder.chmod(0o711)
    print(f"chaos: {count} runs, seed {seed}, in {folder}", flush=True)
    with Stack(folder, seed) as stack:
        django.setup()
        from tests.chaos import campaign, table

        report = campaign.run(stack, count, seed, lambda words: print(f"  {words}", flush=True))
        late = stack.stop_product()
        print(table.of(report, count, seed), flush=True)
        if late:
            print(f"had to be killed at the end: {', '.join(late)}")
        if not report.holds:
            table.keep(folder, report)
    if report.holds:
        shutil.rmtree(folder)
        return 0
    print(f"logs, books and database.sql: {folder}\nagain: make chaos RUNS={count} SEED={seed}")
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
    except CannotStart as error:
        sys.exit(f"tests.chaos: {error}")
