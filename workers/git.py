"""The only way the control plane runs git: an own git dir, no hooks, no filters, no network.

A git dir that an agent can write to is code execution (hooks, fsmonitor, filters, aliases), so it
is never given to git here; neither is any configuration that this process did not write.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from loops.core.errors import WorkspaceFault

TIMEOUT = 600.0

# These win over every .gitattributes: content is stored and restored byte for byte, and an agent
# cannot hide a file from the review by marking it as binary.
ATTRIBUTES = "* -text -eol -filter -ident -working-tree-encoding !diff\n"

_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.protectNTFS=true",
    "core.protectHFS=true",
    "core.quotePath=false",
    "core.untrackedCache=false",
    "core.splitIndex=false",
    "core.commitGraph=false",
    "core.safecrlf=false",
    "index.version=2",
    "protocol.allow=never",
    "safe.bareRepository=explicit",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "commit.gpgSign=false",
    "log.showSignature=false",
    "advice.detachedHead=false",
    "pack.threads=2",
)
_ENVIRONMENT = {
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
}


@dataclass(frozen=True)
class Done:
    """A git command that has ended."""

    code: int
    out: bytes
    err: bytes


@dataclass(frozen=True)
class Git:
    """git bound to one git dir, and optionally to a work tree and an index file."""

    git_dir: Path
    work_tree: Path | None = None
    index: Path | None = None

    def at(self, work_tree: Path, index: Path) -> Git:
        """The same git dir over another work tree."""
        return replace(self, work_tree=work_tree, index=index)

    def run(self, *args: str, stdin: bytes = b"", timeout: float = TIMEOUT) -> bytes:
        """Standard output. Raises `WorkspaceFault` with git's last line when it fails."""
        done = self.attempt(*args, stdin=stdin, timeout=timeout)
        if done.code != 0:
            self.fail(args, done)
        return done.out

    def line(self, *args: str, stdin: bytes = b"") -> str:
        """The one line that git answered."""
        return os.fsdecode(self.run(*args, stdin=stdin).rstrip(b"\n"))

    def attempt(
        self, *args: str, stdin: bytes = b"", timeout: float = TIMEOUT, most: int | None = None
    ) -> Done:
        """Run git, whatever it answers. With `most`, output beyond that many bytes is not read.

        Raises `WorkspaceFault` when it does not end within `timeout` seconds.
        """
        process = subprocess.Popen(
            self._argv(args), cwd=self.work_tree or self.git_dir, env=self._env(),
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if most is None else subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        with process:
            try:
                if most is not None:
                    return _first_bytes(process, most)
                out, err = process.communicate(stdin or None, timeout=timeout)
            except subprocess.TimeoutExpired as error:
                raise WorkspaceFault(f"git {args[0]} took longer than {timeout:g} s") from error
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        return Done(process.returncode, out, err)

    def fail(self, args: Sequence[str], done: Done) -> NoReturn:
        """Raise what git said."""
        said = done.err.decode("utf-8", "replace").strip().splitlines()
        last = said[-1] if said else f"exit code {done.code}"
        raise WorkspaceFault(f"git {args[0]}: {last}")

    def _argv(self, args: Sequence[str]) -> list[str]:
        options = [part for setting in _CONFIG for part in ("-c", setting)]
        return ["git", "--no-pager", *options, *args]

    def _env(self) -> dict[str, str]:
        env = {"PATH": os.environ.get("PATH", os.defpath), "GIT_DIR": str(self.git_dir)}
        if self.work_tree:
            env["GIT_WORK_TREE"] = str(self.work_tree)
        if self.index:
            env["GIT_INDEX_FILE"] = str(self.index)
        return env | _ENVIRONMENT


def _first_bytes(process: subprocess.Popen[bytes], most: int) -> Done:
    assert process.stdout is not None  # noqa: S101 - started with a pipe
    out = process.stdout.read(most)
    # one that has more to say is ended by the caller, and did nothing wrong
    return Done(0 if len(out) == most else process.wait(), out, b"")


def make_git_dir(folder: Path, object_format: str = "sha1", *, borrow: Path | None = None) -> Git:
    """A new bare git dir with our attributes; `borrow` names an object store to read from, too."""
    for part in ("objects/info", "objects/pack", "refs/heads", "info"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    version, extra = 0, ""
    if object_format != "sha1":
        version, extra = 1, f"[extensions]\n\tobjectFormat = {object_format}\n"
    (folder / "HEAD").write_text("ref: refs/heads/loopwarden/base\n")
    (folder / "config").write_text(
        f"[core]\n\trepositoryFormatVersion = {version}\n\tbare = false\n{extra}"
    )
    (folder / "info/attributes").write_text(ATTRIBUTES)
    if borrow:
        lend(folder / "objects", borrow)
    return Git(folder)


def lend(objects: Path, store: Path) -> None:
    """Let the object folder `objects` read from another `store` (git's alternates)."""
    name = os.fsencode(store)
    if b"\n" in name or name.startswith(b'"'):
        raise WorkspaceFault(f"a folder of this name cannot be used: {store}")
    (objects / "info/alternates").write_bytes(name + b"\n")


def split_z(raw: bytes) -> list[bytes]:
    """The parts of a NUL-terminated list."""
    return raw.split(b"\0")[:-1]
