"""Runs one command and leaves nothing of it alive. A program of its own, started by `commands.py`.

    python -I -S reaper.py ROLE CONTROL_FD STATUS_FD TIMEOUT PARENT LIMITS ARGV...

It adopts every orphan of the command, so "no children left" means "no descendants left", also for
those in a session of their own. It ends them all when the command ends, at TIMEOUT seconds, on
SIGTERM, and when CONTROL_FD is closed, which is what the death of the worker does.

ROLE is `plain`, or `outer` around a sandbox and `inner` in it. The inner one is the first process
of its pid namespace: orphans come by themselves, and the kernel ends them when it ends.

STATUS_FD gets lines: `started PID`, `left-behind` if processes had to be ended after the command
had, and last `ended EXIT_CODE`, `timeout` or `stopped`, after `survivors` if some could not be.
"""

import contextlib
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

GRACE = 0.2  # seconds for helpers such as `>(tee log)`, which a shell does not wait for
KILL_SECONDS = 10.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

stop_asked = False


def on_stop(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM, or the death of the thread that started this process."""
    global stop_asked  # noqa: PLW0603
    stop_asked = True


def adopt(parent: int) -> Callable[[], object]:
    """Become the parent of all orphans below, and hear of the worker's death.

    Gives what the command's process calls to end with this one, should this one be killed.
    """
    import ctypes  # noqa: PLC0415 - 4 ms that the inner process does not need

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit("this kernel cannot adopt orphans (PR_SET_CHILD_SUBREAPER)")
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the worker ended before its command began")
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):  # noqa: PTH110
        sys.exit("this kernel cannot list child processes (CONFIG_PROC_CHILDREN)")
    return lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def start(argv: list[str], limits: str, follow: Callable[[], object]) -> int:
    """Fork the command into its own session. What cannot be started ends with 127 or 126."""
    child = os.fork()
    if child:
        return child
    try:
        follow()
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        for pair in filter(None, limits.split(",")):
            name, _, value = pair.partition("=")
            apply_limit(getattr(resource, f"RLIMIT_{name.upper()}"), int(value))
        os.execvp(argv[0], argv)  # noqa: S606
    except FileNotFoundError:
        os.write(2, f"command not found: {argv[0]}\n".encode())
        os._exit(127)
    except Exception as error:
        os.write(2, f"cannot run {argv[0]}: {error}\n".encode())
    os._exit(126)


def apply_limit(kind: int, value: int) -> None:
    """Lower a limit; one that is lower already stays."""
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


class Family:
    """All living processes below this one."""

    def __init__(self, wake: int) -> None:
        self.wake = wake
        self.statuses: dict[int, int] = {}

    def alone(self) -> bool:
        """Bury the dead. True when no child is left, and with it no descendant."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return False
                self.statuses[pid] = status
        except ChildProcessError:
            return True

    def alone_within(self, seconds: float) -> bool:
        """Wait for the last one to leave by itself."""
        end = time.monotonic() + seconds
        while not self.alone():
            left = end - time.monotonic()
            if left <= 0:
                return False
            self.pause(left)
        return True

    def kill(self) -> bool:
        """End all of them, again and again while they fork. False if some cannot be ended."""
        end = time.monotonic() + KILL_SECONDS
        while not self.alone():
            kill_below(os.getpid())
            if time.monotonic() > end:
                return False
            self.pause(0.01)
        return True

    def pause(self, seconds: float) -> None:
        """Until a child dies, at most `seconds`."""
        if select.select([self.wake], [], [], seconds)[0]:
            os.read(self.wake, 512)


def kill_below(pid: int) -> None:
    """Kill on sight, before looking further: what forks must not win time."""
    pending = children(pid)
    while pending:
        victim = pending.pop()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(victim, signal.SIGKILL)
        pending += children(victim)


def children(pid: int) -> list[int]:
    """Child processes now."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:  # noqa: PTH123
                found += map(int, file.read().split())
    return found


def watch(child: int, control: int, deadline: float, family: Family) -> str:
    """Wait for the command, or for a reason to end it; its last status line."""
    sources = [family.wake] if control < 0 else [family.wake, control]
    while True:
        family.alone()
        if child in family.statuses:
            code = os.waitstatus_to_exitcode(family.statuses[child])
            return f"ended {code if code >= 0 else 128 - code}"
        left = deadline - time.monotonic()
        if left <= 0:
            return "timeout"
        ready = select.select(sources, [], [], min(left, 3600.0))[0]
        if family.wake in ready:
            os.read(family.wake, 512)
        if stop_asked or control in ready:
            return "stopped"


def hear_signals() -> int:
    """A file descriptor that becomes readable when a child died or SIGTERM came."""
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.signal(signal.SIGTERM, on_stop)
    return wake


def main(args: list[str]) -> int:
    """Run, end, report; the exit code of the command, 128 + n for signal n."""
    role, control, status = args[0], int(args[1]), int(args[2])
    deadline = time.monotonic() + float(args[3])
    family = Family(hear_signals())
    # the sandbox hands STATUS_FD on to the inner process; the command itself never gets one
    os.set_inheritable(status, role == "outer")
    follow: Callable[[], object] = int
    if role != "inner":
        os.set_inheritable(control, False)
        follow = adopt(int(args[4]))
    child = start(args[6:], args[5], follow)
    if role != "inner":
        os.write(status, b"started %d\n" % child)
    outcome = watch(child, control, deadline, family)
    ended = outcome.startswith("ended")
    if ended and not family.alone_within(GRACE):
        os.write(status, b"left-behind\n")
    if role != "inner":
        complete = family.kill()
        os.write(status, f"{'' if complete else 'survivors '}{outcome}\n".encode())
    return int(outcome.split()[1]) if ended else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
