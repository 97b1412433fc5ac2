"""Looks at processes from outside, and starts the stand-in supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dashboard.local.ports import free_port
from dashboard.local.waiting import until

WAIT_SECONDS = 20.0


def alive(pid: int) -> bool:
    """Whether it runs; a zombie that nobody has collected does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def gone(*pids: int) -> bool:
    """Whether all of them have ended within the waiting time."""
    return until(lambda: not any(map(alive, pids)), seconds=WAIT_SECONDS)


def read_pid(file: Path) -> int:
    """The number in a pid file, as soon as it is written."""
    found: list[int] = []

    def written() -> bool:
        # A server that starts again empties its file before it writes the new number.
        text = file.read_text().strip() if file.exists() else ""
        if text:
            found.append(int(text))
        return bool(text)

    assert until(written, seconds=WAIT_SECONDS)
    return found[-1]


@dataclass
class Driver:
    """A supervisor in a process of its own, with its stand-in children."""

    process: subprocess.Popen[str]
    data: Path
    port: int

    def pid_of(self, name: str) -> int:
        return read_pid(self.data / f"{name}.pid")

    def pids(self) -> list[int]:
        return [self.pid_of(name) for name in ("web", "tend", "worker", "valkey")]

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_SECONDS)

    def said(self) -> str:
        """What the process wrote until it ended."""
        assert self.process.stdout is not None
        return self.process.stdout.read()


@contextmanager
def driver(data: Path, **facts: object) -> Iterator[Driver]:
    """Start `tests.dashboard.local.driver`; a `started` driver has printed its first line."""
    port = facts.setdefault("port", free_port())
    argv = [sys.executable, "-m", "tests.dashboard.local.driver", str(data), json.dumps(facts)]
    environ = {k: v for k, v in os.environ.items() if k != "REDIS_URL"}
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
    ) as process:
        try:
            yield Driver(process, data, int(str(port)))
        finally:
            process.kill()


@contextmanager
def started(data: Path, **facts: object) -> Iterator[Driver]:
    with driver(data, **facts) as one:
        assert one.process.stdout is not None
        first = one.process.stdout.readline()
        assert first == "ready\n", first + one.said()
        yield one
