"""One process that starts everything on this machine, keeps it alive and stops all of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from dashboard.local.errors import CannotStart, ChildFailed
from dashboard.local.keeper import Keeper, RestartPolicy
from dashboard.local.lock import FolderLock, Running, holder
from dashboard.local.logs import private_folder, rotate, tail
from dashboard.local.ports import answers, require_free
from dashboard.local.processes import Process
from dashboard.local.signals import StopSignals
from dashboard.local.sockets import socket_url
from dashboard.local.valkey import ValkeyServer
from workers.redis_url import UnsafeRedis, check_policy

CHECK_SECONDS = 0.2
READY_CHECK_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Child:
    """A program to keep running. It gets SIGTERM to stop, and SIGKILL after its grace."""

    name: str
    argv: tuple[str, ...]
    grace_seconds: float = 5.0


class ChildProcess:
    """The present process of one child."""

    def __init__(self, child: Child, log: Path, env: Mapping[str, str]) -> None:
        self.child = child
        self.log = log
        self._env = env
        self._process: Process | None = None

    def start(self) -> None:
        rotate(self.log)
        self._process = Process(self.child.argv, log=self.log, env=self._env)

    def alive(self) -> bool:
        return self._process is not None and self._process.ended() is None

    def stop(self) -> None:
        if self._process:
            self._process.stop(self.child.grace_seconds)

    def kill_at_once(self) -> None:
        if self._process:
            self._process.kill_at_once()


class Supervisor:
    """A context manager: entering starts all, leaving stops the children in the table's order.

    Entering takes the data folder's lock, checks the port, starts Valkey unless `redis_url` names
    a server, calls `prepare` (migrations), and starts the children. Whatever keeps it from that is
    a `CannotStart`. Enter it in the main thread. Children find the server in `REDIS_URL`.
    While it is open, Ctrl-C, SIGTERM and a hang-up raise KeyboardInterrupt, the next one kills all.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        children: Sequence[Child],
        port: int,
        host: str = "127.0.0.1",
        redis_url: str | None = None,
        env: Mapping[str, str] | None = None,
        prepare: Callable[[], None] = lambda: None,
        ready: Callable[[], bool] = lambda: True,
        policy: RestartPolicy | None = None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.host = host
        self.port = port
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._valkey = None if redis_url else ValkeyServer(self.data_dir)
        self.redis_url = redis_url or socket_url(self.data_dir)
        self._prepare = prepare
        self._ready = ready
        self._policy = policy or RestartPolicy()
        self._env = {**os.environ, **(env or {}), "REDIS_URL": self.redis_url}
        self._children = [ChildProcess(c, self.log_of(c.name), self._env) for c in children]
        self._keepers: list[Keeper] = []
        self._signals = StopSignals(self._kill_all)
        self._undo = ExitStack()

    @staticmethod
    def running(data_dir: Path) -> Running | None:
        """The live supervisor of a data folder, if there is one."""
        return holder(data_dir)

    def log_of(self, name: str) -> Path:
        """Where the output of a child goes."""
        return self.data_dir / "logs" / f"{name}.log"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def check(self) -> None:
        """Start again what has died. Call it often while the supervisor is open.

        Raises `ChildFailed` when something dies again and again.
        """
        for keeper in self._keepers:
            keeper.check(time.monotonic())

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Return when the page answers and `ready()` holds. Raises `ChildFailed`."""
        deadline = time.monotonic() + seconds
        while not (answers(self.host, self.port) and self._ready()):
            self.check()
            if time.monotonic() > deadline:
                raise ChildFailed(self._unready(seconds))
            time.sleep(READY_CHECK_SECONDS)

    def serve_forever(self) -> None:
        """Keep everything alive until Ctrl-C or SIGTERM. Raises `ChildFailed`."""
        try:
            while True:
                self.check()
                time.sleep(CHECK_SECONDS)
        except KeyboardInterrupt:
            return

    def _close(self) -> None:
        self._signals.stopping = True
        self._undo.close()

    def _start(self) -> None:
        self._undo.callback(self._signals.restore)
        self._signals.install()
        private_folder(self.data_dir)
        private_folder(self.data_dir / "logs")
        lock = FolderLock(self.data_dir)
        self._undo.callback(lock.release)
        lock.acquire(self.address)
        require_free(self.host, self.port)
        self._start_redis()
        self._prepare()
        # The stack unwinds backwards: the first child of the table is stopped first.
        for child in reversed(self._children):
            self._undo.callback(child.stop)
            self._keep(child.child.name, child.log, start=child.start, alive=child.alive)

    def _start_redis(self) -> None:
        if self._valkey:
            self._undo.callback(self._valkey.stop)
            self._keep(
                "valkey", self._valkey.log, start=self._valkey.start, alive=self._valkey.alive
            )
        try:
            check_policy(self.redis_url)
        except UnsafeRedis as error:
            raise CannotStart(str(error)) from error

    def _keep(
        self, name: str, log: Path, *, start: Callable[[], None], alive: Callable[[], bool]
    ) -> None:
        keeper = Keeper(name, log, start=start, alive=alive, policy=self._policy)
        keeper.start()
        self._keepers.append(keeper)

    def _kill_all(self) -> None:
        for child in self._children:
            child.kill_at_once()

    def _unready(self, seconds: float) -> str:
        missing = "a worker" if answers(self.host, self.port) else f"a page at {self.address}"
        ends = [f"End of {k.log}:\n{tail(k.log, lines=8)}" for k in self._keepers]
        return "\n".join([f"no sign of {missing} after {seconds:g} s.", *ends])
