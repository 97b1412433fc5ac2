"""Trees in a control repository: what differs between two of them, and new ones out of old ones."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from workers.git import Git, split_z

NO_MODE = "000000"


@dataclass(frozen=True)
class Change:
    """One path that differs. Mode `000000` stands for "not there"."""

    path: bytes
    old_mode: str
    new_mode: str
    old: str
    new: str

    @property
    def added(self) -> bool:
        """The path is new."""
        return self.old_mode == NO_MODE


def changes(git: Git, before: str, after: str) -> list[Change]:
    """All paths that differ between two trees or commits, in path order."""
    out = git.run("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", before, after)
    parts = split_z(out)
    found = []
    for meta, path in zip(parts[::2], parts[1::2], strict=True):
        old_mode, new_mode, old, new, _ = meta.decode().lstrip(":").split(" ")
        found.append(Change(path, old_mode, new_mode, old, new))
    return found


def with_old_side(git: Git, tree: str, plan: Iterable[Change]) -> str:
    """The tree with each planned path as it was on the old side.

    Raises `WorkspaceFault` when a file and a folder would need the same name.
    """
    remove, put = [], []
    for change in plan:
        if change.added:
            remove.append(f"0 {'0' * len(change.new)}\t".encode() + change.path + b"\0")
        else:
            put.append(f"{change.old_mode} {change.old}\t".encode() + change.path + b"\0")
    with tempfile.TemporaryDirectory(prefix="loopwarden-index-") as folder:
        work = git.at(git.work_tree or git.git_dir, Path(folder) / "index")
        work.run("read-tree", tree)
        if remove or put:
            work.run("update-index", "-z", "--index-info", stdin=b"".join(remove + put))
        return work.line("write-tree")
