"""Snapshots of a workspace, exact undo, and going back to a snapshot."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path

from loops.core.errors import WorkspaceFault
from workers.control import ControlRepo
from workers.git import split_z
from workers.gitstate import Blobs, State, put_back, read_state
from workers.staging import scan, stage
from workers.trees import Change, changes, with_old_side

MAX_BYTES = 2_000_000_000


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A folder at one moment. Equal files mean an equal `tree`, whatever its git dirs hold."""

    tree: str
    """Id of the tree of all files, those of nested repositories included."""
    nested: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Folders with a git dir of their own, each with the tree of that git dir's files."""
    state: State = field(default=(), compare=False)
    """HEAD, index and branch of the folder's own git dir."""
    place: str = field(default="", compare=False)
    """Name of the folder. Elsewhere `state` does not hold: its commits exist in this one only."""

    @property
    def objects(self) -> tuple[str, ...]:
        """Everything that this snapshot needs to be restored exactly."""
        return tuple(dict.fromkeys([*self.travelling, *(blob for _, blob in self.state)]))

    @property
    def travelling(self) -> tuple[str, ...]:
        """What another host needs to go on: all but the state of the folder's own git dir."""
        return tuple(dict.fromkeys([self.tree, *(tree for _, tree in self.nested if tree)]))

    def dump(self) -> str:
        """As one line of JSON, for a database row."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Snapshot:
        """What `dump` wrote."""
        raw = json.loads(text)
        pairs = [tuple((str(name), str(oid)) for name, oid in raw[k]) for k in ("nested", "state")]
        return cls(tree=raw["tree"], nested=pairs[0], state=pairs[1], place=raw["place"])


class Snapshotter:
    """Takes and undoes snapshots of one folder. Its index remembers stat data between calls."""

    def __init__(self, control: ControlRepo, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.git = control.git.at(folder, control.index_for(folder))
        self.blobs = Blobs(self.git)

    def snapshot(self) -> Snapshot:
        """Tracked and untracked files, without what the ignore rules name.

        Raises `TooLarge`, and `WorkspaceFault` for a file that cannot be read or stored.
        """
        found = scan(self.git)
        stage(self.git, found, max_bytes=self.max_bytes)
        nested = sorted(os.fsdecode(path) for path in found.nested)
        return Snapshot(
            tree=self.git.line("write-tree"),
            nested=tuple((path, self._vault(path)) for path in nested),
            state=read_state(self.blobs, self.folder),
            place=self.folder.name,
        )

    def restore(self, target: Snapshot) -> None:
        """Make the folder equal to a snapshot. Raises `WorkspaceFault` when it cannot be."""
        self.undo(target, self.snapshot())

    def undo(self, before: Snapshot, after: Snapshot) -> None:
        """Take back exactly what changed between the two; what others changed since then stays.

        Raises `WorkspaceFault` when somebody else changed the same path, and when the files are
        not exactly right afterwards.
        """
        if astuple(before) == astuple(after):
            return
        now = self.snapshot()
        plan = self._plan(before, after, now)
        target = with_old_side(self.git, now.tree, plan)
        rules = before.nested != after.nested or any(_is_rule(change) for change in plan)
        self._take_out_git_dirs(before, after, now)
        if rules:
            self._apply_rules_first(now.tree, target, plan)
        else:
            self._switch(now.tree, target)
        self._put_in_git_dirs(before, after)
        if before.place == after.place == self.folder.name:
            put_back(self.blobs, self.folder, before.state, after.state)
        self._verify(target, rules=rules)

    def _plan(self, before: Snapshot, after: Snapshot, now: Snapshot) -> list[Change]:
        """What to take back, without what is back already."""
        meanwhile = {c.path: c for c in changes(self.git, after.tree, now.tree)}
        plan, lost = [], []
        for change in changes(self.git, before.tree, after.tree):
            other = meanwhile.get(change.path)
            if other is None:
                plan.append(change)
            elif (other.new_mode, other.new) != (change.old_mode, change.old):
                lost.append(os.fsdecode(change.path))
        held, then = dict(now.nested), dict(after.nested)
        lost += [path for path in _moved(before, after) if held.get(path) != then.get(path)]
        if lost:
            names = ", ".join(sorted(lost)[:5])
            raise WorkspaceFault(f"undo stopped: somebody else changed {names} meanwhile")
        return plan

    def _apply_rules_first(self, now: str, target: str, plan: Sequence[Change]) -> None:
        """Ignore rules go back before files are removed.

        A file that only seems new, because the change removed the rule that hid it, was there
        before and must stay (it is not in the earlier snapshot, so it could not be given back).
        """
        kept = [c for c in plan if not c.added or _is_rule(c)]
        names = {c.path for c in kept}
        above = {parent for c in kept for parent in _parents(c.path)}
        for change in plan:
            if change.added and (change.path in above or names & set(_parents(change.path))):
                kept.append(change)
        first = with_old_side(self.git, now, dict.fromkeys(kept))
        self._switch(now, first)
        hidden = self._ignored([c.path for c in plan if c.added and c not in kept])
        if hidden:
            stdin = b"".join(path + b"\0" for path in hidden)
            self.git.run("update-index", "--force-remove", "-z", "--stdin", stdin=stdin)
            first = self.git.line("write-tree")
        self._switch(first, target)

    def _ignored(self, paths: Sequence[bytes]) -> list[bytes]:
        """Those that the rules in the folder hide now."""
        # "./" keeps a name such as ":(x)" from being read as a pattern
        stdin = b"".join(b"./" + path + b"\0" for path in paths)
        args = ("check-ignore", "--no-index", "-z", "--stdin")
        done = self.git.attempt(*args, stdin=stdin)
        if done.code not in (0, 1):
            self.git.fail(args, done)
        return [path.removeprefix(b"./") for path in split_z(done.out)]

    def _switch(self, old: str, new: str) -> None:
        """Two trees, one move: only what differs is touched, emptied folders go."""
        if old != new:
            self.git.run("read-tree", "-m", "-u", old, new)

    def _verify(self, target: str, *, rules: bool) -> None:
        actual = self.snapshot().tree
        if actual != target and rules:
            # files that a rule of the undone change had hidden: they did not exist before it,
            # or the earlier snapshot, under the rules of then, would hold them
            if all(change.added for change in changes(self.git, target, actual)):
                self._switch(actual, target)
            actual = self.snapshot().tree
        if actual != target:
            paths = [os.fsdecode(c.path) for c in changes(self.git, target, actual)]
            raise WorkspaceFault(f"undo failed: these files are not as before: {paths[:5]}")

    def _vault(self, nested: str) -> str:
        """The files of a nested git dir as a tree; empty when `.git` is no plain folder."""
        git_dir = self._plain(nested)
        if git_dir is None or self.git.index is None:
            return ""
        name = hashlib.sha256(os.fsencode(nested)).hexdigest()[:16]
        git = self.git.at(git_dir, self.git.index.with_name(f"vault-{name}"))
        stage(git, scan(git, ignore_rules=False), max_bytes=self.max_bytes)
        return git.line("write-tree")

    def _plain(self, nested: str) -> Path | None:
        git_dir = self.folder / nested / ".git"
        plain = git_dir.is_dir() and not git_dir.is_symlink() and self._reached_directly(nested)
        return git_dir if plain else None

    def _reached_directly(self, nested: str) -> bool:
        """No link on the way: an agent could aim one at any folder of this user."""
        return (self.folder / nested).resolve() == self.folder.resolve() / nested

    def _take_out_git_dirs(self, before: Snapshot, after: Snapshot, now: Snapshot) -> None:
        held = dict(now.nested)
        for path in _moved(before, after):
            git_dir = self._plain(path)
            if git_dir is not None:
                shutil.rmtree(git_dir)
            elif path in held and self._reached_directly(path):
                (self.folder / path / ".git").unlink(missing_ok=True)

    def _put_in_git_dirs(self, before: Snapshot, after: Snapshot) -> None:
        moved = _moved(before, after)
        for path, tree in before.nested:
            if path in moved and tree:
                self.put_git_dir(path, tree)
        for path in moved - dict(before.nested).keys():
            if self._reached_directly(path):
                _remove_empty(self.folder / path)

    def put_git_dir(self, nested: str, tree: str) -> None:
        """Write the git dir of a nested repository from a snapshot."""
        git_dir = self.folder / nested / ".git"
        if git_dir.is_symlink() or not self._reached_directly(nested):
            raise WorkspaceFault(f"{nested} is a link now: its git dir cannot be put back")
        for part in ("objects", "refs"):
            (git_dir / part).mkdir(parents=True, exist_ok=True)
        if self.git.index is not None:
            index = self.git.index.with_name("vault-new")
            index.unlink(missing_ok=True)
            self.git.at(git_dir, index).run("read-tree", "-m", "-u", tree)


def _moved(before: Snapshot, after: Snapshot) -> set[str]:
    """Nested repositories whose git dir came, went or changed."""
    old, new = dict(before.nested), dict(after.nested)
    return {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}


def _is_rule(change: Change) -> bool:
    return change.path.rpartition(b"/")[2] == b".gitignore"


def _parents(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:n]) for n in range(1, len(parts))]


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # somebody's ignored files are in it, or it is gone already
