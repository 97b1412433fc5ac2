"""Finds the repository that a path means, and says what is wrong with the path."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from loops.core.errors import WorkspaceFault
from workers.staging import TooLarge


class SourceFault(WorkspaceFault):
    """This repository cannot be the source of a run. `field` names the form field to mark."""

    field = "repo"


class SourceTooLarge(SourceFault, TooLarge):
    """The repository is larger than this installation allows."""


def locate(path: Path, roots: Sequence[Path]) -> tuple[Path, Path, Path, bool]:
    """Top folder, git dir, the git dir that holds the objects, and whether it is bare.

    Raises `SourceFault`, also for a linked worktree whose objects lie outside of the roots.
    """
    top, git_dir, bare = _find(_allowed(path, roots))
    common_dir = _common_dir(git_dir)
    _inside(common_dir, roots)
    return top, git_dir, common_dir, bare


def _allowed(path: Path, roots: Sequence[Path]) -> Path:
    try:
        # The roots come first: nobody may learn which paths exist elsewhere.
        _inside(path.expanduser().resolve(), roots)
        real = path.expanduser().resolve(strict=True)
    except (OSError, RuntimeError) as error:
        reason = "cannot be read" if isinstance(error, PermissionError) else "does not exist"
        raise SourceFault(f"{path} {reason} on the worker's host: check the path") from error
    _inside(real, roots)
    if not real.is_dir():
        raise SourceFault(f"{path} is a file: name the folder of a git repository")
    if not os.access(real, os.R_OK | os.X_OK):
        raise SourceFault(f"{path} cannot be read: give the worker's user access to it")
    return real


def _inside(path: Path, roots: Sequence[Path]) -> None:
    if not any(path.is_relative_to(root.resolve()) for root in roots):
        names = ", ".join(map(str, roots)) or "none"
        raise SourceFault(
            f"{path} lies outside of the folders that repositories may come from ({names}): "
            "move it there, or let an administrator add its folder to LOOPWARDEN_REPO_ROOTS"
        )


def _find(start: Path) -> tuple[Path, Path, bool]:
    """Top folder, git dir, bare. Found by hand: git would stop at another user's folder."""
    for folder in (start, *start.parents):
        entry = folder / ".git"
        if entry.is_dir():
            return folder, _readable(entry), False
        if entry.is_file():
            target = os.fsdecode(_readable(entry).read_bytes()).removeprefix("gitdir:").strip()
            git_dir = (folder / target).resolve()
            if not (git_dir / "HEAD").is_file():
                raise SourceFault(f"{entry} points to {target}, which is no git dir: repair it")
            return folder, git_dir, False
        if all((folder / part).exists() for part in ("HEAD", "objects", "refs")):
            return folder, _readable(folder), True
    raise SourceFault(f"{start} is no git repository: run git init and commit, or name another one")


def _readable(path: Path) -> Path:
    if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        raise SourceFault(f"{path} cannot be read: give the worker's user access to it")
    return path


def _common_dir(git_dir: Path) -> Path:
    """Where a linked worktree keeps its objects."""
    pointer = git_dir / "commondir"
    if not pointer.is_file():
        return git_dir.resolve()
    return (git_dir / os.fsdecode(pointer.read_bytes()).strip()).resolve()
