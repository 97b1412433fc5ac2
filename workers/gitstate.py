"""The state of a folder's own git dir, read and put back as plain files; git never runs there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from workers.git import Git

State = tuple[tuple[str, str], ...]
"""(file name inside .git, blob id); a file that is not there is left out."""

_MOST = 64_000_000


class Blobs:
    """Files as blobs of a control repository. What was stored a moment ago costs no process."""

    def __init__(self, git: Git) -> None:
        self._git = git
        self._known: dict[bytes, str] = {}

    def put(self, content: bytes) -> str:
        """Store; the blob's id."""
        digest = hashlib.sha256(content).digest()
        if digest not in self._known:
            blob = self._git.line("hash-object", "-w", "--stdin", stdin=content)
            self._known[digest] = blob
        return self._known[digest]

    def get(self, blob: str) -> bytes:
        """The bytes of a blob."""
        return self._git.run("cat-file", "blob", blob)


def read_state(blobs: Blobs, folder: Path) -> State:
    """HEAD, the index and the branch that HEAD names, stored as blobs."""
    names = ["HEAD", "index"]
    head = _read(folder, "HEAD") or b""
    target = os.fsdecode(head.removeprefix(b"ref: ").strip()) if head.startswith(b"ref: ") else ""
    if target.startswith("refs/") and ".." not in target:
        names.append(target)
    found = []
    for name in names:
        content = _read(folder, name)
        if content is not None:
            found.append((name, blobs.put(content)))
    return tuple(found)


def put_back(blobs: Blobs, folder: Path, before: State, after: State) -> None:
    """Undo each file that still is as it was in `after`; what others changed since then stays."""
    old, new, now = dict(before), dict(after), dict(read_state(blobs, folder))
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) == new.get(name) or now.get(name) != new.get(name):
            continue
        if _inside(folder, name):
            # a git dir that the agent has broken stays broken: only its own git needs it
            with contextlib.suppress(OSError):
                _write(folder / ".git" / name, blobs, old.get(name))


def _write(file: Path, blobs: Blobs, blob: str | None) -> None:
    if blob is None:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f"{file.name}.loopwarden")
    fresh.unlink(missing_ok=True)
    with fresh.open("xb") as target:  # never through a link that waits under this name
        target.write(blobs.get(blob))
    fresh.replace(file)


def _inside(folder: Path, name: str) -> bool:
    """No link on the way: an agent could aim one at any file of this user."""
    return (folder / ".git" / name).parent.resolve() == (folder.resolve() / ".git" / name).parent


def _read(folder: Path, name: str) -> bytes | None:
    if not _inside(folder, name):
        return None
    try:
        handle = os.open(folder / ".git" / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MOST:
            return None
        return file.read()
