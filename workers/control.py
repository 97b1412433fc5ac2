"""The control repository of a run: outside of every sandbox, written by the control plane alone."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from loops.core.errors import WorkspaceFault
from workers.git import Git, lend, make_git_dir
from workers.source import Source, reader

BASE = "refs/heads/loopwarden/base"
WORK = "refs/heads/loopwarden/work"
_IDENTITY = "[user]\n\tname = Loopwarden\n\temail = loopwarden@localhost\n"


class ControlRepo:
    """One bare git dir per run: the base commit, every snapshot, the delivered branch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git = Git(folder)

    @property
    def exists(self) -> bool:
        """Whether the import is complete; it appears under its name only then."""
        return (self.folder / "HEAD").is_file()

    @property
    def objects(self) -> Path:
        """What commands in a workspace must be able to read, for git to work there."""
        return self.folder / "objects"

    @property
    def base(self) -> str:
        """The commit that the run started from."""
        return self.git.line("rev-parse", "--verify", BASE)

    @property
    def shallow(self) -> str:
        """The cut history of a shallow source, as git's own file; empty for a full one."""
        file = self.folder / "shallow"
        return file.read_text() if file.exists() else ""

    def create_from(self, source: Source, dirty_pack: bytes = b"", dirty_commit: str = "") -> None:
        """Copy the pinned commit with its history; nothing stays shared with the source.

        Does nothing when an earlier call was complete. Raises `WorkspaceFault` when that one
        started from another commit, and when objects are missing in the source.
        """
        base = dirty_commit or source.commit
        if self._ready(base):
            return
        with self._building(source.object_format) as git:
            if source.shallow:
                (git.git_dir / "shallow").write_text(source.shallow)
            with reader(source, beside=git.git_dir.parent) as theirs:
                pack = str(git.git_dir / "objects/pack/pack")
                args = ("pack-objects", "--revs", "--delta-base-offset", "-q", pack)
                theirs.run(*args, stdin=f"{source.commit}\n".encode())
            if dirty_pack:
                git.run("index-pack", "--fix-thin", "--stdin", stdin=dirty_pack)
            git.run("update-ref", BASE, base)

    def create_from_pack(
        self,
        pack: bytes,
        base: str,
        *,
        more: bytes = b"",
        shallow: str = "",
        object_format: str = "sha1",
    ) -> None:
        """The same repository on a host that has no source, out of a pack of its history.

        `more` is a thin pack on top of it, such as what was not committed at submission.
        """
        if self._ready(base):
            return
        with self._building(object_format) as git:
            if shallow:
                (git.git_dir / "shallow").write_text(shallow)
            git.run("index-pack", "--stdin", stdin=pack)
            if more:
                git.run("index-pack", "--fix-thin", "--stdin", stdin=more)
            git.run("update-ref", BASE, base)

    def base_pack(self) -> bytes:
        """The base commit with its history, as a pack."""
        return self.export_pack([self.base], [])

    def export_pack(self, new: Sequence[str], have: Sequence[str]) -> bytes:
        """A pack of all that `new` (commits, trees, blobs) needs beyond what `have` needs."""
        wanted = "".join(f"{oid}\n" for oid in new) + "".join(f"^{oid}\n" for oid in have)
        args = ("pack-objects", "--revs", "--thin", "--stdout", "--delta-base-offset", "-q")
        return self.git.run(*args, stdin=wanted.encode())

    def add_pack(self, pack: bytes) -> None:
        """Take in what `export_pack` gave on another host; twice does no harm."""
        self.git.run("index-pack", "--fix-thin", "--stdin", stdin=pack)

    def has(self, oid: str) -> bool:
        """Whether the object is here."""
        return self.git.attempt("cat-file", "-e", oid).code == 0

    def index_for(self, folder: Path) -> Path:
        """The private index of a workspace; the first call fills it with the base's names."""
        index = self.folder / "workspaces" / folder.name / "index"
        index.with_name("index.lock").unlink(missing_ok=True)
        if not index.exists():
            index.parent.mkdir(parents=True, exist_ok=True)
            base = self.git.attempt("rev-parse", "--verify", "-q", BASE)
            if base.code == 0:
                self.git.at(folder, index).run("read-tree", BASE)
        return index

    def checkout(self, tree: str, folder: Path) -> None:
        """A fresh private workspace: the files of `tree` (or commit), and a git dir for the agent.

        That git dir stands on the base commit, so `git status` and `git diff` in the workspace
        show the work of the run. It is the agent's: the control plane never gives it to git again.
        """
        try:
            folder.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise WorkspaceFault(f"no workspace can be made at {folder}: {error}") from error
        index = self.folder / "workspaces" / folder.name / "index"
        shutil.rmtree(index.parent, ignore_errors=True)
        index.parent.mkdir(parents=True)
        files = self.git.at(folder, index)
        files.run("read-tree", "-m", "-u", tree)
        files.run("update-index", "-q", "--refresh")
        self._git_dir_for_agent(folder, index, tree)

    def forget(self, folder: Path) -> None:
        """Remove a workspace and what is remembered of it."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self.folder / "workspaces" / folder.name, ignore_errors=True)

    def _git_dir_for_agent(self, folder: Path, index: Path, tree: str) -> None:
        base = self.base
        object_format = self.git.line("rev-parse", "--show-object-format")
        own = make_git_dir(folder / ".git", object_format).git_dir
        lend(own / "objects", self.objects.resolve())
        (own / "info/attributes").unlink()
        (own / "HEAD").write_text(f"ref: {WORK}\n")
        with (own / "config").open("a") as config:
            config.write(_IDENTITY)
        ref = own / WORK
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(f"{base}\n")
        if self.shallow:
            (own / "shallow").write_text(self.shallow)
        if self.git.line("rev-parse", f"{tree}^{{tree}}") == self._tree(base):
            shutil.copy(index, own / "index")
            return
        files = self.git.at(folder, own / "index")
        files.run("read-tree", base)
        # exit code 1 only says that some files differ from the base
        files.attempt("update-index", "-q", "--refresh")

    def _tree(self, commit: str) -> str:
        return self.git.line("rev-parse", f"{commit}^{{tree}}")

    def _ready(self, base: str) -> bool:
        if not self.exists:
            return False
        if self.base != base:
            raise WorkspaceFault(f"this run started from {self.base}, not from {base}")
        return True

    @contextlib.contextmanager
    def _building(self, object_format: str) -> Iterator[Git]:
        """Build beside the final name and rename: a killed worker leaves nothing half done."""
        draft = self.folder.with_name(f".{self.folder.name}.{secrets.token_hex(6)}")
        try:
            yield make_git_dir(draft, object_format)
            # a directory cannot be renamed onto one that holds files: the first one wins
            with contextlib.suppress(OSError):
                os.rename(draft, self.folder)  # noqa: PTH104
            if not self.exists:
                raise WorkspaceFault(f"the control repository cannot be put at {self.folder}")
        finally:
            shutil.rmtree(draft, ignore_errors=True)
