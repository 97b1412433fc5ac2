"""Runs a command against a private PostgreSQL and a private Redis, then stops both.

`python -m tests.servers COMMAND...` sets DATABASE_URL and REDIS_URL and returns the command's
status. PostgreSQL listens on a unix socket in a private folder only, so that trusting whoever
connects trusts nobody else on the machine. Nothing stays behind, not even after a kill -9.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from dashboard.local.errors import CannotStart
from dashboard.local.logs import tail
from dashboard.local.processes import Process, tied_to_parent
from dashboard.local.valkey import ValkeyServer
from dashboard.local.waiting import until

READY_SECONDS = 30.0
STOP_SECONDS = 20.0
UNPRIVILEGED = ("postgres", "nobody")
OPTIONS = {
    "listen_addresses": "",
    # A test database that is lost with the machine is no loss.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
}


def postgres_program(name: str) -> Path:
    """A PostgreSQL program, from PATH or from Debian's folders, newest first."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    for folder in (*map(Path, os.get_exec_path()), *debian):
        program = (folder / name).resolve()
        # Debian's /usr/bin has links to a wrapper that knows the system's clusters only.
        if program.name == name and os.access(program, os.X_OK):
            return program
    raise CannotStart(f"{name} not found: install the Debian package postgresql, or extend PATH.")


def _version(folder: Path) -> float:
    return float(folder.parent.name)


def _unprivileged_user() -> str | None:
    """PostgreSQL refuses to run as root, so root hands it to somebody else."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in UNPRIVILEGED if name in known), None)


class PostgresServer:
    """A private cluster in `folder`, which may be crashed and started again."""

    def __init__(self, folder: Path, **options: str) -> None:
        """Make the cluster; `options` come on top of `OPTIONS`. Raises `CannotStart`."""
        self._user = _unprivileged_user()
        folder.mkdir(mode=0o700)
        if self._user:
            shutil.chown(folder, self._user)
        self._folder, self._log = folder, folder / "log"
        _initdb(folder / "data", self._user)
        settings = {**OPTIONS, **options, "unix_socket_directories": str(folder)}
        self._options = [part for item in settings.items() for part in ("-c", "=".join(item))]
        self._server: Process | None = None
        self.url = f"postgres://loopwarden@{quote(str(folder), safe='')}/postgres"

    def start(self) -> None:
        """Start it and wait until it answers. Raises `CannotStart`."""
        program, data = postgres_program("postgres"), self._folder / "data"
        # SIGQUIT makes it drop its sessions and its shared memory at once.
        server = self._server = Process(
            [program, "-D", data, *self._options],
            log=self._log,
            death_signal=signal.SIGQUIT,
            user=self._user,
        )
        until(lambda: _accepts(self._folder) or server.ended() is not None, seconds=READY_SECONDS)
        if not _accepts(self._folder):
            raise CannotStart(f"PostgreSQL did not start:\n{tail(self._log)}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it in order, or with SIGQUIT at once: it recovers from its log when it starts."""
        if self._server is not None:
            self._server.stop(STOP_SECONDS, how=how)

    @property
    def pid(self) -> int | None:
        """Its first process."""
        return self._server.pid if self._server else None


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A new PostgreSQL cluster in `folder`; yields its DATABASE_URL. Raises `CannotStart`."""
    server = PostgresServer(folder)
    try:
        server.start()
        yield server.url
    finally:
        server.stop()


def _initdb(data: Path, user: str | None) -> None:
    argv = [postgres_program("initdb"), "-D", data, "-U", "loopwarden", "--auth=trust"]
    argv += ["--encoding=UTF8", "--locale=C", "--no-sync"]
    made = subprocess.run(
        [str(part) for part in argv],
        capture_output=True,
        text=True,
        check=False,
        user=user,
        extra_groups=[] if user else None,
        cwd=data.parent,
    )
    if made.returncode:
        raise CannotStart(f"initdb failed:\n{made.stderr}")


def _accepts(folder: Path) -> bool:
    argv = [str(postgres_program("pg_isready")), "--quiet", "--host", str(folder)]
    return subprocess.run(argv, check=False, cwd=folder).returncode == 0


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """A private `redis-server` if there is one on PATH, else Valkey; yields its REDIS_URL."""
    found = shutil.which("redis-server")
    with ValkeyServer(folder, binary=Path(found) if found else None) as server:
        yield server.url


def run(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """The status of the command, as a shell would give it. SIGTERM is passed on."""
    # It stays in our process group: the terminal's Ctrl-C reaches it, and it alone acts on it.
    with subprocess.Popen(argv, env=env, preexec_fn=tied_to_parent()) as command:  # noqa: PLW1509
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, _frame: command.send_signal(number))
        status = command.wait()
    return 128 - status if status < 0 else status


def main(argv: Sequence[str]) -> int:
    if not argv:
        raise CannotStart("usage: python -m tests.servers COMMAND...")
    with tempfile.TemporaryDirectory(prefix=f"lw-servers-{os.getpid()}-") as name:
        folder = Path(name)
        # The server's own user must be able to pass through.
        folder.chmod(0o711)
        with postgres(folder / "pg") as database_url, redis(folder / "redis") as redis_url:
            env = {**os.environ, "DATABASE_URL": database_url, "REDIS_URL": redis_url}
            return run(argv, env)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except CannotStart as error:
        sys.exit(f"tests.servers: {error}")
