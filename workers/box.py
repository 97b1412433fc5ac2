"""The workspace of one attempt: a fresh private folder, its snapshots, and what comes out of it."""

from __future__ import annotations

import shlex
import shutil
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from django.conf import settings

from loops.core.effects import CommandResult
from loops.core.errors import WorkspaceFault
from loops.models import Run
from loops.store import artifacts, attempts, runs
from loops.store.attempts import Claim
from workers import processes
from workers.control import ControlRepo
from workers.delivery import Delivery, deliver, run_pre_commit_hook
from workers.intake import load_source
from workers.result import diff, review_packet, summary
from workers.sandbox import Sandbox
from workers.snapshots import Snapshot, Snapshotter

_TRAVELLING_BYTES = 256_000_000


class Box:
    """A context manager. Entering does nothing slow; `prepare` does; leaving removes the folder.

    Each claim of an attempt has a folder of its own, so a worker that lost its lease writes where
    nobody looks. A task without a repository gets an empty folder and no snapshots.
    """

    def __init__(self, run: Run, claim: Claim) -> None:
        home = settings.DATA_DIR / "runs" / str(run.pk)
        self.folder: Path = home / "ws" / f"{claim.no}-{claim.token}"
        self.control = ControlRepo(home / "control.git")
        self.has_repository = run.task.source is not None
        self._run = run
        self._claim = claim
        self._known: dict[str, Snapshot] = {}
        self._now: Snapshot | None = None
        self._begun_at = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.has_repository and self.control.exists:
            self.control.forget(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def prepare(self) -> None:
        """Fill the folder with the workspace as the last judged attempt left it."""
        if not self.has_repository:
            self.folder.mkdir(parents=True, mode=0o700)
            return
        self._import()
        stored = Snapshot.load(self._run.tree) if self._run.tree else None
        self.control.checkout(stored.tree if stored else self._run.base_commit, self.folder)
        self._snapshots = Snapshotter(self.control, self.folder)
        for path, tree in stored.nested if stored else ():
            if tree:
                self._snapshots.put_git_dir(path, tree)
        self.note()
        began = self._stored(attempts.round_of(self._run.pk, self._claim.no).tree)
        self._known.setdefault(began.tree, began)
        self._begun_at = began.tree

    def begin(self) -> None:
        """What comes from here on is this round's own work."""
        self._begun_at = self.snapshot()

    @property
    def tree(self) -> str:
        """The latest snapshot in its stored form; empty without a repository."""
        return self._now.dump() if self._now else self._run.tree

    @property
    def changed(self) -> bool:
        """Whether the run has changed anything since its base commit."""
        return bool(self._now and self._now.tree != self._tree_of(self._run.base_commit))

    @property
    def moved(self) -> bool:
        """Whether this round has changed anything."""
        return self.snapshot() != self._begun_at

    def note(self) -> str:
        """Take a snapshot of the folder as it is now, and return its stored form."""
        if not self.has_repository:
            return ""
        self._now = self._snapshots.snapshot()
        self._known[self._now.tree] = self._now
        return self._now.dump()

    def has(self, stored: str) -> bool:
        """Whether a stored snapshot can be gone to on this host."""
        return not stored or all(self.control.has(oid) for oid in Snapshot.load(stored).travelling)

    def follow(self, stored: str) -> None:
        """Go to the snapshot that a replayed step ended with; a fresh step is there already."""
        if not stored or self._now is None or Snapshot.load(stored).tree == self._now.tree:
            return
        self._snapshots.restore(Snapshot.load(stored))
        self.note()

    def snapshot(self) -> str:
        """The id of the files as the last step left them."""
        return self._now.tree if self._now else ""

    def undo(self, before: str, after: str) -> None:
        """Take back exactly what changed between two snapshots of this round."""
        self._snapshots.undo(self._known[before], self._known[after])
        self.note()

    def undo_stored(self, before: str, after: str) -> None:
        """Take back what changed between two stored snapshots; no `before` is the base commit."""
        self._snapshots.undo(self._stored(before), Snapshot.load(after))
        self.note()

    def _stored(self, stored: str) -> Snapshot:
        if stored:
            return Snapshot.load(stored)
        return Snapshot(tree=self._tree_of(self._run.base_commit))

    def confine(self, sandbox: Sandbox) -> Sandbox:
        """The sandbox for this folder: the data folder is hidden but for it."""
        readable = [self.control.objects] if self.has_repository else []
        return sandbox.confine(self.folder, hidden=settings.LOOPWARDEN_HIDDEN, readable=readable)

    def pack(self) -> bytes:
        """The objects that this attempt added, so that another host can go on; empty for none."""
        if self._now is None:
            return b""
        # Only what an earlier pack holds may be left out, not what merely is on this host.
        there: tuple[str, ...] = (self._tree_of(self._run.base_commit),)
        if self._run.tree:
            there = Snapshot.load(self._run.tree).travelling
        new = [oid for oid in self._now.travelling if oid not in there]
        return self.control.export_pack(new, there) if new else b""

    def patch(self) -> bytes:
        """The change since the base commit; it applies there with `git apply`."""
        return diff(self.control.git, self._tree_of(self._run.base_commit), self.snapshot())

    def files(self) -> list[dict[str, Any]]:
        """The changed files, for lists."""
        found = summary(self.control.git, self._tree_of(self._run.base_commit), self.snapshot())
        return [
            {"path": f.path, "kind": f.kind, "added": f.added, "removed": f.removed, "line": f.line}
            for f in found
        ]

    def packet(self, characters: int) -> str:
        """The change as text for a reviewer, at most so many characters."""
        base = self._tree_of(self._run.base_commit)
        return review_packet(self.control.git, base, self.snapshot(), max_chars=characters)

    def run_hook(self, sandbox: Sandbox, seconds: float) -> CommandResult | None:
        """Run the project's own pre-commit hook in the folder; None when it has none."""
        digest = (self._run.task.source or {}).get("hook", "")
        if not digest:
            return None
        hook, confined = artifacts.get(digest), self.confine(sandbox)
        env = processes.mark(self._claim.run_id, self._claim.token)
        verdict = run_pre_commit_hook(hook, self.folder, sandbox=confined, timeout=seconds, env=env)
        self.note()
        return verdict

    def deliver(self) -> Delivery:
        """Put the change on a branch of the run's control repository."""
        task, base = self._run.task, self._run.base_commit
        return deliver(
            self.control, number=task.pk, title=task.title, base=base, tree=self.snapshot()
        )

    def handoff_pack(self, delivery: Delivery) -> bytes:
        """What the delivered commit adds to the source, so that any host can start from it."""
        source = (self._run.task.source or {})["commit"]
        return self.control.export_pack([delivery.commit], [source])

    def commands_to_take(self, delivery: Delivery, patch: Path) -> list[str]:
        """How a person takes the result into their own repository."""
        there = shlex.quote(str((self._run.task.source or {})["path"]))
        control, branch = shlex.quote(str(self.control.folder)), delivery.branch
        fetch = f"git -C {there} fetch {control} {branch}:{branch}"
        if (self._run.task.source or {})["bare"]:
            return [fetch]  # there are no files that a patch could be applied to
        return [fetch, f"git -C {there} apply {shlex.quote(str(patch))}"]

    def _tree_of(self, commit: str) -> str:
        return self.control.git.line("rev-parse", f"{commit}^{{tree}}")

    def _import(self) -> None:
        source = self._run.task.source or {}
        if not self.control.exists and (self._run.base_pack or source.get("pack")):
            self._create_from_packs(source)
        else:
            if not (self.control.exists or Path(source["common_dir"]).is_dir()):
                raise WorkspaceFault(
                    f"{source['path']} is not on {socket.gethostname()}: make it readable there"
                    " under this path, or set LOOPWARDEN_CARRY_SOURCES=1 and submit it again"
                )
            more = artifacts.get(source["dirty_pack"]) if source.get("dirty_pack") else b""
            self.control.create_from(load_source(source), more, source.get("dirty_commit", ""))
        if not self._run.base_commit:
            self._run.base_commit = self.control.base
            self._run.base_pack = self._travelling_pack()
            runs.set_base(self._claim, self._run.base_commit, self._run.base_pack)
        if not self.has(self._run.tree):
            self._fetch()

    def _create_from_packs(self, source: dict[str, Any]) -> None:
        """On a host that may not have the source: from the run's start, or the submission's."""
        pack, base, more = self._run.base_pack, self._run.base_commit, ""
        if not pack:
            pack, more = source["pack"], source.get("dirty_pack", "")
            base = source.get("dirty_commit") or source["commit"]
        self.control.create_from_pack(
            artifacts.get(pack),
            base,
            more=artifacts.get(more) if more else b"",
            shallow=source["shallow"],
            object_format=source["object_format"],
        )

    def _travelling_pack(self) -> str:
        size = sum(file.stat().st_size for file in self.control.objects.rglob("*.pack"))
        if size > _TRAVELLING_BYTES:
            return ""
        return artifacts.put(self.control.base_pack(), "application/x-git-pack")

    def _fetch(self) -> None:
        """Take in what the attempts before this one left, on whichever host they were."""
        packs = self._run.attempts.exclude(pack="").order_by("no").values_list("pack", flat=True)
        for pack in packs:
            self.control.add_pack(artifacts.get(pack))
        if not self.has(self._run.tree):
            raise WorkspaceFault("the snapshot of the last attempt is in no artifact")
