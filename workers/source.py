"""A user's repository as the source of a run: looked at and copied from, never written to."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workers.git import Git, make_git_dir, split_z
from workers.locate import SourceFault, SourceTooLarge, locate
from workers.staging import scan, stage

MAX_SOURCE_BYTES = 2_000_000_000
HOOK_BYTES = 65_536
_OWN_SETTINGS = r"^core\.(filemode|symlinks|ignorecase|autocrlf|eol)$"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A repository as it was when the task was submitted."""

    path: Path
    """Its top folder; the git dir itself of a bare repository."""
    git_dir: Path
    common_dir: Path
    bare: bool
    object_format: str
    shallow: str
    commit: str
    branch: str | None
    """None when HEAD is detached."""
    dirty: bool
    """Tracked files differ from the commit, or untracked ones exist."""
    untracked: int
    dirty_submodules: tuple[str, ...]
    has_submodules: bool
    pre_commit_hook: bytes | None
    """The project's own check before each commit, at most 64 kB of it."""


@dataclass(frozen=True, kw_only=True)
class DirtyCapture:
    """The working tree as a commit on top of HEAD; `pack` is thin, it builds on HEAD."""

    commit: str
    pack: bytes


def inspect_source(
    path: str | os.PathLike[str], *, roots: Sequence[Path], max_bytes: int = MAX_SOURCE_BYTES
) -> Source:
    """Everything that can be wrong with a source, found before any model is called.

    `roots` are the folders that repositories may come from. Raises `SourceFault` with one sentence
    that names the problem and the remedy.
    """
    top, git_dir, common_dir, bare = locate(Path(path), roots)
    git = Git(git_dir, None if bare else top)
    head = git.attempt("rev-parse", "--verify", "-q", "HEAD^{commit}")
    if head.code != 0:
        raise SourceFault(f"{top} has no commit yet: make a first commit, then submit again")
    branch = git.attempt("symbolic-ref", "-q", "--short", "HEAD")
    shallow = common_dir / "shallow"
    source = Source(
        path=top,
        git_dir=git_dir,
        common_dir=common_dir,
        bare=bare,
        object_format=git.line("rev-parse", "--show-object-format"),
        shallow=shallow.read_text() if shallow.exists() else "",
        commit=head.out.decode().strip(),
        branch=os.fsdecode(branch.out.strip()) if branch.code == 0 else None,
        dirty=False,
        untracked=0,
        dirty_submodules=(),
        has_submodules=False,
        pre_commit_hook=_hook(git, top, common_dir),
    )
    with reader(source) as theirs:
        _check_size(theirs, source, max_bytes)
        return source if bare else _with_state(theirs, source)


def capture_dirty(source: Source, *, max_bytes: int = MAX_SOURCE_BYTES) -> DirtyCapture:
    """The working tree with its changes and untracked files, as one commit on top of HEAD.

    Raises `SourceFault` for changes inside a submodule, which no commit here could hold.
    """
    if source.dirty_submodules:
        name = source.dirty_submodules[0]
        raise SourceFault(
            f"the submodule {name} has changes of its own: commit them there and commit the new "
            f"pointer here, or submit without the uncommitted changes"
        )
    with reader(source) as git:
        if source.bare:
            return DirtyCapture(commit=source.commit, pack=b"")
        stage(git, scan(git), max_bytes=max_bytes)
        tree = git.line("write-tree")
        if tree == git.line("rev-parse", f"{source.commit}^{{tree}}"):
            return DirtyCapture(commit=source.commit, pack=b"")
        commit = commit_tree(git, tree, source.commit, "Uncommitted changes at submission\n")
        wanted = f"{commit}\n^{source.commit}\n".encode()
        args = ("pack-objects", "--revs", "--thin", "--stdout", "-q")
        return DirtyCapture(commit=commit, pack=git.run(*args, stdin=wanted))


def export_history(source: Source) -> bytes:
    """The pinned commit with its history as a pack, for hosts that do not have the source."""
    with reader(source) as git:
        args = ("pack-objects", "--revs", "--stdout", "--delta-base-offset", "-q")
        return git.run(*args, stdin=f"{source.commit}\n".encode())


def commit_tree(git: Git, tree: str, parent: str, message: str, *, at: int = 0) -> str:
    """A commit object by the one identity of this product, at `at` seconds since 1970.

    Equal content makes an equal id.
    """
    who = "Loopwarden <loopwarden@localhost>"
    raw = f"tree {tree}\nparent {parent}\nauthor {who} {at} +0000\ncommitter {who} {at} +0000\n\n"
    return git.line("hash-object", "-t", "commit", "-w", "--stdin", stdin=(raw + message).encode())


@contextlib.contextmanager
def reader(source: Source, *, beside: Path | None = None) -> Iterator[Git]:
    """A throw-away git dir that reads the source's objects, with a copy of its index.

    The user's git dir stays as it is, and neither its hooks nor its filters can run. `beside` is
    the folder to make it in: git renames its packs, which it can do on one file system only.
    """
    with tempfile.TemporaryDirectory(prefix="loopwarden-source-", dir=beside) as folder:
        objects = source.common_dir / "objects"
        git = make_git_dir(Path(folder) / "git", source.object_format, borrow=objects)
        (git.git_dir / "HEAD").write_text(f"{source.commit}\n")
        if source.shallow:
            (git.git_dir / "shallow").write_text(source.shallow)
        if source.bare:
            yield git
            return
        _adopt_work_tree(git, source)
        yield git.at(source.path, git.git_dir / "index")


def _adopt_work_tree(git: Git, source: Source) -> None:
    """Index, excludes and the settings that say what counts as a change on this file system."""
    for file in [source.git_dir / "index", *source.git_dir.glob("sharedindex.*")]:
        if file.is_file():
            shutil.copy2(file, git.git_dir / file.name)
    exclude = source.common_dir / "info/exclude"
    if exclude.is_file():
        shutil.copyfile(exclude, git.git_dir / "info/exclude")
    # line ends follow the project's own rules here, or every file of a CRLF checkout would differ
    (git.git_dir / "info/attributes").write_text("* -filter -ident -working-tree-encoding\n")
    args = ("config", "--local", "-z", "--get-regexp", _OWN_SETTINGS)
    with (git.git_dir / "config").open("a") as config:
        for entry in split_z(Git(source.git_dir).attempt(*args).out):
            name, _, value = os.fsdecode(entry).partition("\n")
            if value.isalpha():
                config.write(f"[core]\n\t{name.removeprefix('core.')} = {value}\n")


def _hook(git: Git, top: Path, common_dir: Path) -> bytes | None:
    found = git.attempt("config", "--local", "--get", "core.hooksPath")
    named = os.fsdecode(found.out.strip())
    hook = ((top / named) if named else common_dir / "hooks") / "pre-commit"
    real = hook.resolve()
    if not (real.is_file() and os.access(real, os.R_OK | os.X_OK)):
        return None
    if not any(real.is_relative_to(home) for home in (top, common_dir)):
        raise SourceFault(f"the pre-commit hook {hook} lies outside of the repository: copy it in")
    with real.open("rb") as file:
        return file.read(HOOK_BYTES)


def _check_size(git: Git, source: Source, max_bytes: int) -> None:
    listing = git.attempt("ls-tree", "-r", "-l", "-z", source.commit)
    if listing.code != 0:
        raise SourceFault(
            f"{source.path} lacks objects of {source.commit[:12]}: run git fsck there"
        )
    sizes = [entry.split(b"\t")[0].split()[3] for entry in split_z(listing.out)]
    files = sum(int(size) for size in sizes if size != b"-")
    packs = source.common_dir / "objects/pack"
    history = sum(file.stat().st_size for file in packs.glob("*.pack"))
    if max(files, history) > max_bytes:
        raise SourceTooLarge(
            f"{source.path} holds {max(files, history):,} bytes, more than the {max_bytes:,} "
            "allowed: use a smaller repository or raise the limit"
        )


def _with_state(git: Git, source: Source) -> Source:
    found = scan(git)
    staged = git.attempt("diff-index", "--cached", "--quiet", source.commit, "--")
    dirty = bool(found.changed or found.gone or found.nested or staged.code)
    submodules = tuple(
        os.fsdecode(path)
        for path, commit in sorted(found.gitlinks.items())
        if _is_dirty(source.path / os.fsdecode(path), commit)
    )
    return replace(
        source,
        dirty=dirty or bool(submodules),
        untracked=found.untracked,
        dirty_submodules=submodules,
        has_submodules=bool(found.gitlinks),
    )


def _is_dirty(folder: Path, commit: str) -> bool:
    """Whether a submodule has other content than the commit that the index records."""
    if not (folder / ".git").exists():
        return False
    try:
        inner = inspect_source(folder, roots=[Path("/")])
    except SourceFault:
        return True
    return inner.dirty or inner.commit != commit
