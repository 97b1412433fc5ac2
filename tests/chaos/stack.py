"""The product as it is run: servers, workers, tenders and web, each started again when it dies."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from dashboard.local.errors import CannotStart
from dashboard.local.processes import Process
from dashboard.local.valkey import ValkeyServer
from dashboard.local.waiting import until
from tests.chaos import bank
from tests.servers import PostgresServer

ROOT = Path(__file__).resolve().parent.parent.parent
LEASE_SECONDS = 3
POOL_SLOTS = 10
THREADS = 6
WORKERS = ("worker-1", "worker-2", "worker-3")
TENDERS = ("tend-1", "tend-2")
WEB = "web"
STEPPED = WORKERS[-1]
"""The worker whose wall clock is stepped."""
RESTART_SECONDS = 0.3
DISK = "2g"
CLONE_NEWNS = 0x00020000


@dataclass
class Part:
    """One program that is kept running."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    process: Process | None = None
    died_at: float = 0.0


class Stack:
    """A context manager; enter it, and call everything here, in the main thread."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.data = folder / "data"
        self.books = {name: folder / f"{name}.jsonl" for name in ("provider", "bank")}
        self.clock = folder / "clock"
        self.port = _free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._seed = seed
        self._undo = ExitStack()
        self._short_of_room: int | None = None
        self.parts: dict[str, Part] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()

    def _start(self) -> None:
        self.logs.mkdir()
        self.step_clock(0)
        self.mounted = self._mount()
        # Unlike in tests, what was committed must be there after a crash of the server.
        self.postgres = PostgresServer(self.folder / "pg", synchronous_commit="on")
        self._undo.callback(self.postgres.stop)
        self.postgres.start()
        found = shutil.which("redis-server")
        (self.folder / "redis").mkdir()
        self.redis = ValkeyServer(self.folder / "redis", binary=Path(found) if found else None)
        self._undo.enter_context(self.redis)
        self.outside = {name: self._outsider(name) for name in self.books}
        os.environ.update(self.environment())

    def _mount(self) -> bool:
        """A file system of its own for the data, so that it can really be full; needs root."""
        self.data.mkdir()
        # In a name space of its own the mount goes with the last process, whatever kills this one.
        if ctypes.CDLL(None).unshare(CLONE_NEWNS):
            return False
        commands = [
            ["mount", "--make-rprivate", "/"],
            ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "chaos", str(self.data)],
        ]
        if any(subprocess.run(argv, check=False).returncode for argv in commands):
            return False
        self._undo.callback(subprocess.run, ["umount", "--lazy", str(self.data)], check=False)
        return True

    def _outsider(self, name: str) -> str:
        """Start a stand-in of the outside world; its address."""
        address = self.folder / f"{name}.address"
        argv = [sys.executable, "-m", f"tests.chaos.{name}", str(self._seed)]
        argv += [str(self.books[name]), str(address)]
        part = self.parts[name] = Part(argv=argv, env=dict(os.environ))
        self._run(name, part)
        if not until(address.exists, seconds=20):
            raise CannotStart(f"the {name} did not start, see {self.logs / name}.log")
        return address.read_text()

    def environment(self) -> dict[str, str]:
        """What every process of the product gets."""
        return {
            "DJANGO_SETTINGS_MODULE": "dashboard.settings",
            "DATABASE_URL": self.postgres.url,
            "REDIS_URL": self.redis.url,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "CELERY_SKIP_CHECKS": "1",
            "CHAOS_KEY": "a key that opens nothing",
            bank.ADDRESS: self.outside["bank"],
            "LOOPWARDEN_DATA": str(self.data),
            "LOOPWARDEN_PORT": str(self.port),
            "LOOPWARDEN_REPO_ROOTS": str(self.folder),
            "LOOPWARDEN_TOOLS": bank.TOOLS,
            "LOOPWARDEN_LEASE_SECONDS": str(LEASE_SECONDS),
            "LOOPWARDEN_SLOTS": str(POOL_SLOTS),
            "LOOPWARDEN_POOL": str(THREADS),
            "LOOPWARDEN_ATTEMPT_SECONDS": "60",
            "LOOPWARDEN_COMMAND_SECONDS": "10",
            "LOOPWARDEN_RETRY_SECONDS": "2",
        }

    def start_product(self) -> None:
        """Start workers, tenders and web, after the database was made ready."""
        python, env = sys.executable, dict(os.environ)
        for name in WORKERS:
            argv = f"celery -A workers.app worker --pool=threads --concurrency={THREADS}"
            argv += f" --without-gossip --without-mingle --without-heartbeat -n {name}@%h"
            how = f"-m tests.chaos.stepped {self.clock}" if name == STEPPED else "-m"
            self.parts[name] = Part(argv=[python, *f"{how} {argv}".split()], env=env)
        for name in TENDERS:
            self.parts[name] = Part(argv=[python, str(ROOT / "manage.py"), "tend"], env=env)
        web = f"-m uvicorn dashboard.asgi:application --host 127.0.0.1 --port {self.port}"
        web += " --no-access-log --log-level warning --timeout-graceful-shutdown 3"
        self.parts[WEB] = Part(argv=[python, *web.split()], env=env)
        self.keep()

    def step_clock(self, seconds: int) -> None:
        """Set one worker's wall clock ahead or back."""
        fresh = self.clock.with_suffix(".new")
        fresh.write_text(f"{seconds}\n")
        fresh.rename(self.clock)

    def keep(self) -> None:
        """Start what is not there: a supervisor's work."""
        for name, part in self.parts.items():
            if part.process is not None and part.process.ended() is None:
                continue
            part.died_at = part.died_at or time.monotonic()
            if part.process is None or time.monotonic() > part.died_at + RESTART_SECONDS:
                self._run(name, part)

    def _run(self, name: str, part: Part) -> None:
        part.process = Process(part.argv, log=self.logs / f"{name}.log", env=part.env)
        part.died_at = 0.0
        self._undo.callback(part.process.kill)

    def pid(self, name: str) -> int | None:
        """The process of a part, while it lives."""
        process = self.parts[name].process
        return process.pid if process is not None and process.ended() is None else None

    def fill_disk(self) -> bool:
        """Leave no room for data files. False: it could not be now.

        Without a file system of its own, one worker can write no file any more.
        """
        if not self.mounted:
            self._short_of_room = self.pid(WORKERS[0])
            return self._limit_files(0)
        facts = os.statvfs(self.data)
        used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
        return self._resize(str(used))

    def free_disk(self) -> None:
        """Give the room back."""
        if self.mounted:
            self._resize(DISK)
        else:
            self._limit_files(resource.RLIM_INFINITY)

    def _limit_files(self, size: int) -> bool:
        if self._short_of_room is None:
            return False
        limits = (size, resource.RLIM_INFINITY)
        with suppress(ProcessLookupError):
            resource.prlimit(self._short_of_room, resource.RLIMIT_FSIZE, limits)
            return True
        return False

    def _resize(self, size: str) -> bool:
        argv = ["mount", "-o", f"remount,size={size}", str(self.data)]
        return subprocess.run(argv, check=False, stderr=subprocess.DEVNULL).returncode == 0

    def stop_product(self, seconds: float = 20.0) -> list[str]:
        """Ask everything to end; the names of those that had to be killed."""
        names = [WEB, *TENDERS, *WORKERS]
        late = []
        for name in names:
            process = self.parts[name].process
            if process is not None and process.ended() is None:
                process.stop(seconds)
                if process.ended() == -9:
                    late.append(name)
        return late

    def strays(self) -> list[int]:
        """Processes below this one that are neither parts nor servers, nor PostgreSQL's own."""
        known = {part.process.pid for part in self.parts.values() if part.process}
        known |= {pid for pid in (self.postgres.pid, self.redis.pid) if pid}
        found, pending = [], [os.getpid()]
        while pending:
            for child in _children(pending.pop()):
                if child == self.postgres.pid:
                    continue
                if child not in known and not _bury(child):
                    found.append(child)
                pending.append(child)
        return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _bury(pid: int) -> bool:
    """Whether it is dead; a dead orphan that came to us is taken off the list."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    if state != "Z":
        return False
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return True
