"""Runs commands: a wall-clock limit, bounded output, a clean environment, no survivors."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from loops.core.effects import CommandResult
from loops.core.errors import CommandFault
from workers.capture import Capture
from workers.sandbox import REAPER, Launch, Sandbox, command_path

OUTPUT_CAP = 200_000
_PATIENCE = 12.0  # seconds for the reaper to end everything, before it is ended itself
CANCELLED = "cancelled"
_CANCEL_POLL = 0.05


def run_command(
    command: str | Sequence[str],
    *,
    cwd: Path,
    timeout: float,
    sandbox: Sandbox,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    output_cap: int = OUTPUT_CAP,
    cancelled: threading.Event | None = None,
    ceiling: float = math.inf,
) -> CommandResult:
    """Run a command line (by bash, else sh) or an argv in `cwd`, and leave nothing of it alive.

    `timeout` and `ceiling` are seconds; a timeout above the ceiling is clamped to it. The command
    sees PATH, HOME, TMPDIR, LANG, TERM and `env`, nothing of the worker's own environment. At most
    about `output_cap` bytes are kept, head and tail. A command that is not found ends with 127.
    Setting `cancelled` ends it at once: exit code None, warning `cancelled`.

    Raises `CommandFault` when the timeout is no positive finite number, when `cwd` is no folder,
    and when the process cannot be started at all.
    """
    limit = min(checked_timeout(timeout), ceiling)
    if not cwd.is_dir():
        raise CommandFault(f"cwd: {cwd} is not a folder")
    with tempfile.TemporaryDirectory(prefix="loopwarden-", ignore_cleanup_errors=True) as scratch:
        launch = sandbox.launch(_argv(command), cwd=cwd, scratch=Path(scratch))
        environment = {**launch.env, **(env or {})}
        with _reaper(launch, environment, cwd=cwd, limit=limit, stdin=stdin) as running:
            capture = Capture(output_cap)
            _follow(running, capture, limit, cancelled)
    return _result(running, capture, cancelled)


def checked_timeout(timeout: float) -> float:
    """The value as a number of seconds; models and forms send all kinds."""
    try:
        value = float(timeout)
    except (TypeError, ValueError) as error:
        raise CommandFault(f"timeout must be a number of seconds, not {timeout!r}") from error
    if not math.isfinite(value) or value <= 0:
        raise CommandFault(f"timeout must be more than 0 seconds and finite, not {timeout!r}")
    return value


def _argv(command: str | Sequence[str]) -> list[str]:
    if isinstance(command, str):
        shell = "bash" if shutil.which("bash", path=command_path()) else "sh"
        return [shell, "-c", command]
    if not command:
        raise CommandFault("command: an empty list names nothing to run")
    return list(command)


@dataclass
class _Running:
    """One reaper at work, and what it has said."""

    process: subprocess.Popen[bytes]
    control: int
    status: int
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    said: bytearray = field(default_factory=bytearray)
    overdue: bool = False

    @property
    def output(self) -> IO[bytes]:
        """Both streams of the command."""
        assert self.process.stdout is not None  # noqa: S101 - started with a pipe
        return self.process.stdout

    @property
    def lines(self) -> list[str]:
        return self.said.decode("ascii", "replace").splitlines()

    @property
    def outcome(self) -> list[str]:
        """Words of the last line, if it is a final one."""
        words = self.lines[-1].split() if self.lines else []
        return words if {"ended", "timeout", "stopped"} & set(words) else []

    def stop(self) -> None:
        """Tell the reaper to end everything."""
        if self.control >= 0:
            os.close(self.control)
            self.control = -1

    def kill(self) -> None:
        """The reaper does not answer: end it and the processes of the command that are known."""
        self.process.kill()
        for words in map(str.split, self.lines):
            if words[:1] == ["started"]:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(int(words[1]), signal.SIGKILL)


@contextlib.contextmanager
def _reaper(
    launch: Launch, env: Mapping[str, str], *, cwd: Path, limit: float, stdin: bytes
) -> Iterator[_Running]:
    """The reaper as a process; it and its pipes are gone afterwards, whatever happens."""
    control_end, control = os.pipe()
    status, status_end = os.pipe()
    roles = [launch.role, str(control_end), str(status_end), repr(limit), str(os.getpid())]
    argv = [sys.executable, "-I", "-S", str(REAPER), *roles, launch.limits]
    argv += launch.argv(status_end)
    try:
        process = _spawn(argv, cwd, env, stdin, (control_end, status_end))
    except (OSError, ValueError) as error:
        os.close(control)
        os.close(status)
        raise CommandFault(f"the command cannot be started: {error}") from error
    finally:
        os.close(control_end)
        os.close(status_end)
    running = _Running(process, control, status)
    try:
        yield running
    finally:
        running.stop()
        process.wait()
        os.close(status)
        running.output.close()


def _spawn(
    argv: list[str], cwd: Path, env: Mapping[str, str], stdin: bytes, fds: tuple[int, int]
) -> subprocess.Popen[bytes]:
    # a file, not a pipe: a command that does not read its input cannot hold up the worker
    with tempfile.TemporaryFile() if stdin else Path(os.devnull).open("r+b") as source:
        source.write(stdin)
        source.seek(0)
        return subprocess.Popen(
            argv, cwd=cwd, env=dict(env), stdin=source, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, pass_fds=fds, start_new_session=True,
        )  # fmt: skip


def _follow(
    running: _Running, capture: Capture, limit: float, cancelled: threading.Event | None
) -> None:
    """Read until the reaper has reported its end. It keeps the time; this is the second wall."""
    output = running.output.fileno()
    os.set_blocking(output, False)
    deadline = running.started + limit + _PATIENCE
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        selector.register(running.status, selectors.EVENT_READ)
        while running.status in selector.get_map():
            now = time.monotonic()
            if cancelled is not None and cancelled.is_set() and running.control >= 0:
                running.stop()
                deadline = min(deadline, now + _PATIENCE)
            if now > deadline:
                running.overdue = True
                break
            wait = deadline - now
            for key, _ in selector.select(min(wait, _CANCEL_POLL) if cancelled else wait):
                if key.fd == output:
                    _read(selector, output, capture)
                else:
                    _hear(selector, running)
    if not running.outcome:
        running.kill()
    running.seconds = time.monotonic() - running.started
    while _chunk(output, capture):
        pass


def _read(selector: selectors.BaseSelector, output: int, capture: Capture) -> None:
    if not _chunk(output, capture):
        selector.unregister(output)


def _chunk(output: int, capture: Capture) -> bool:
    """Take what is there; False at the end, or when nothing is."""
    try:
        chunk = os.read(output, 65536)
    except BlockingIOError:
        return False
    capture.add(chunk)
    return bool(chunk)


def _hear(selector: selectors.BaseSelector, running: _Running) -> None:
    """The status ends with the last process that could still write to it, or with a final word."""
    chunk = os.read(running.status, 4096)
    running.said += chunk[: 4096 - len(running.said)]
    if not chunk or running.outcome:
        selector.unregister(running.status)


def _result(
    running: _Running, capture: Capture, cancelled: threading.Event | None
) -> CommandResult:
    output, cut = capture.text()
    lines, outcome = running.lines, running.outcome
    if not lines:
        raise CommandFault(f"the command cannot be started: {output.strip() or 'no reason given'}")
    warnings = []
    if "left-behind" in lines:
        warnings.append("background_process_killed")
    if "survivors" in outcome:
        warnings.append("process_survived")
    exit_code = int(outcome[-1]) if "ended" in outcome else None
    timed_out = "timeout" in outcome or running.overdue
    if exit_code is None and not timed_out:
        asked = cancelled is not None and cancelled.is_set()
        warnings.append(CANCELLED if asked else "watcher_killed")
        exit_code = None if asked else 128 + signal.SIGKILL
    return CommandResult(
        exit_code=exit_code,
        output=output,
        seconds=running.seconds,
        timed_out=timed_out,
        output_cut=cut,
        warnings=tuple(warnings),
    )
