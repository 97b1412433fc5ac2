"""A child process that cannot outlive the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from dashboard.local.errors import CannotStart
from dashboard.local.waiting import until

PR_SET_PDEATHSIG = 1
KILL_SECONDS = 10.0


def tied_to_parent(death_signal: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """A `preexec_fn`: the kernel sends `death_signal` to the child when its parent dies.

    Linux only; elsewhere a parent killed with -9 leaves its children.
    """
    parent = os.getpid()
    if sys.platform != "linux":
        return lambda: None
    libc = ctypes.CDLL(None)

    def arm() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(death_signal))
        # The parent may have died between fork and prctl: then no signal will ever come.
        if os.getppid() != parent:
            os._exit(1)

    return arm


class Process:
    """One child in a session of its own, so that the terminal's Ctrl-C reaches the parent only."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        death_signal: signal.Signals = signal.SIGKILL,
        user: str | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start `argv` with its output appended to `log`. Raises `CannotStart`."""
        # The kernel ties a child to the thread that forked it, not to the process.
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("start processes from the main thread")
        self.argv = [str(part) for part in argv]
        self.log = log
        try:
            with log.open("ab") as output:
                # No thread of this process holds a lock here, so preexec_fn cannot deadlock.
                self._popen = subprocess.Popen(
                    self.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=None if env is None else dict(env),
                    start_new_session=True,
                    pass_fds=pass_fds,
                    user=user,
                    extra_groups=[] if user else None,
                    # Only system calls: safe where other threads may hold locks.
                    preexec_fn=tied_to_parent(death_signal),  # noqa: PLW1509 - see above
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotStart(f"cannot start {self.argv[0]}: {error}") from error

    @property
    def pid(self) -> int:
        return self._popen.pid

    def ended(self) -> int | None:
        """The exit status (negative: the signal), or None while it runs."""
        if self._popen.returncode is None and self._is_zombie():
            # What it left in its group goes while the zombie still reserves the group's number.
            self._signal_group(signal.SIGKILL)
            self._popen.wait()
        return self._popen.returncode

    def stop(self, grace_seconds: float, how: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end; after the grace, kill it and its process group."""
        if self.ended() is None:
            self._popen.send_signal(how)
            until(lambda: self.ended() is not None, seconds=grace_seconds)
        self.kill()

    def kill(self) -> None:
        """End it and its process group now."""
        if self.ended() is None:
            self._signal_group(signal.SIGKILL)
            until(lambda: self.ended() is not None, seconds=KILL_SECONDS)

    def kill_at_once(self) -> None:
        """Send SIGKILL to its process group and do not wait; safe in a signal handler."""
        if self._popen.returncode is None:
            self._signal_group(signal.SIGKILL)

    def _is_zombie(self) -> bool:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def _signal_group(self, number: signal.Signals) -> None:
        # macOS answers EPERM for a group whose only member is a zombie.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
