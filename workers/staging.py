"""Reads a work tree into an index of our own, without ever entering a git dir that it contains.

`git add` would: for a nested repository it records a bare pointer, and later asks the nested git
dir for its status, with the configuration an agent wrote there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field

from loops.core.errors import WorkspaceFault
from workers.git import Git, split_z

GITLINK = b"160000"


class TooLarge(WorkspaceFault):
    """The files are larger than this installation allows. `reason` is a stable word."""

    reason = "workspace_too_large"


@dataclass
class Scan:
    """What differs between a work tree and its index. Paths are bytes, relative to the tree."""

    changed: list[bytes] = field(default_factory=list)
    gone: list[bytes] = field(default_factory=list)
    nested: set[bytes] = field(default_factory=set)
    """Folders that hold a git dir of their own."""
    gitlinks: dict[bytes, str] = field(default_factory=dict)
    """Submodules by path, with the commit that the index records."""
    untracked: int = 0


def scan(git: Git, *, ignore_rules: bool = True) -> Scan:
    """Compare by the index' stat data; `ignore_rules` leaves out what .gitignore names."""
    found = Scan()
    folders: set[bytes] = set()
    rules = ["--exclude-standard"] if ignore_rules else []
    entries = _list(git, "-t", "-s", "-c", "-o", "-m", "-d", *rules)
    root = os.fsencode(_work_tree(git))
    removed: set[bytes] = set()
    modified: set[bytes] = set()
    for entry in entries:
        tag, rest = entry[:1], entry[2:]
        if tag == b"?":
            found.untracked += 1
            if rest.endswith(b"/"):
                _enter(git, rest[:-1], found)
            else:
                found.changed.append(rest)
                folders.add(os.path.dirname(rest))  # noqa: PTH120 - bytes
            continue
        meta, _, path = rest.partition(b"\t")
        if meta.startswith(GITLINK):
            found.gitlinks[path] = meta.split()[1].decode()
            continue
        folders.add(os.path.dirname(path))  # noqa: PTH120 - bytes
        if tag == b"R":
            removed.add(path)
        elif tag in b"CM":
            modified.add(path)
    lost = {path for path in modified - removed if not _is_file(root, path)}
    found.gone = sorted(removed | lost)
    found.changed += sorted(modified - removed - lost)
    found.nested |= _with_git_dir(root, folders)
    return found


def stage(git: Git, found: Scan, *, max_bytes: int) -> None:
    """Bring the index to the state of the work tree.

    Raises `TooLarge`, or `WorkspaceFault` for names git refuses, such as `.GIT`.
    """
    root = os.fsencode(_work_tree(git))
    size = sum(os.lstat(os.path.join(root, path)).st_size for path in found.changed)  # noqa: PTH118
    if size > max_bytes:
        raise TooLarge(
            f"the changed files hold {size:,} bytes, more than the {max_bytes:,} allowed: "
            "let .gitignore name what the result does not need"
        )
    if found.gone:
        git.run("update-index", "--force-remove", "-z", "--stdin", stdin=_joined(found.gone))
    if found.changed:
        args = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
        done = git.attempt(*args, stdin=_joined(found.changed))
        if done.code != 0:
            git.fail(args, done)
        if b"Ignoring path" in done.err:
            name = done.err.decode("utf-8", "replace").split("Ignoring path ", 1)[1]
            raise WorkspaceFault(f"git refuses a file of this name: {name.splitlines()[0]}")


def _work_tree(git: Git) -> str:
    if git.work_tree is None or git.index is None:
        raise WorkspaceFault("a work tree and an index are needed here")
    return str(git.work_tree)


def _list(git: Git, *options: str) -> list[bytes]:
    done = git.attempt("ls-files", "-z", *options)
    # git only warns and goes on, but what it has not seen can neither be kept nor restored
    if done.code != 0 or b"could not open directory" in done.err:
        git.fail(("ls-files",), done)
    return split_z(done.out)


def _enter(git: Git, folder: bytes, found: Scan) -> None:
    """List a nested repository's files as ours."""
    found.nested.add(folder)
    if git.work_tree is None or git.index is None:
        return
    inner = git.at(git.work_tree / os.fsdecode(folder), git.index.with_name("none"))
    for path in _list(inner, "-o", "--exclude-standard"):
        if path.endswith(b"/"):
            _enter(git, folder + b"/" + path[:-1], found)
        else:
            found.changed.append(folder + b"/" + path)


def _is_file(root: bytes, path: bytes) -> bool:
    """A file or link that is reached without going through a link."""
    full = os.path.join(root, path)  # noqa: PTH118 - bytes
    parent = os.path.dirname(full)  # noqa: PTH120
    while len(parent) > len(root):
        if os.path.islink(parent):  # noqa: PTH114
            return False
        parent = os.path.dirname(parent)  # noqa: PTH120
    try:
        mode = os.lstat(full).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _with_git_dir(root: bytes, folders: set[bytes]) -> set[bytes]:
    """Those folders, or folders above them, that hold a `.git`; the root itself left out."""
    every: set[bytes] = set()
    for folder in folders:
        current = folder
        while current and current not in every:
            every.add(current)
            current = os.path.dirname(current)  # noqa: PTH120
    found = {path for path in every if os.path.lexists(os.path.join(root, path, b".git"))}  # noqa: PTH118
    real = os.path.realpath(root)
    return {path for path in found if os.path.realpath(root + b"/" + path) == real + b"/" + path}


def _joined(paths: Iterable[bytes]) -> bytes:
    return b"".join(path + b"\0" for path in paths)
