"""What can be wrong with a source is said before a model is called; nothing in it ever changes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from loops.core.errors import WorkspaceFault
from tests.workers.conftest import START, fingerprint, sh
from workers.control import ControlRepo
from workers.delivery import deliver
from workers.locate import SourceFault, SourceTooLarge
from workers.snapshots import Snapshotter
from workers.source import Source, capture_dirty, inspect_source

BASE = START + "printf 'x=1\\n' > app.py; mkdir sub; echo s > sub/s; git add .; git commit -qm base"


@pytest.fixture
def repo(folder: Path) -> Path:
    sh(BASE, folder)
    return folder


def look(path: Path) -> Source:
    return inspect_source(path, roots=[path.parent.parent])


def test_it_finds_the_top_the_commit_and_the_branch(repo: Path) -> None:
    source = inspect_source(repo / "sub", roots=[repo.parent])

    assert source.path == repo
    assert source.commit == sh("git rev-parse HEAD", repo).stdout.strip()
    assert source.branch == "main"
    assert not source.dirty
    assert (source.untracked, source.dirty_submodules, source.has_submodules) == (0, (), False)
    assert source.pre_commit_hook is None


@pytest.mark.parametrize(
    ("script", "untracked"),
    [
        ("echo 2 > app.py", 0),
        ("rm app.py", 0),
        ("echo 2 > app.py; git add app.py", 0),
        ("git rm -q --cached app.py; rm app.py", 0),
        ("echo n > new; mkdir d; echo n > d/new", 2),
        ("chmod +x app.py", 0),
    ],
)
def test_it_sees_what_is_dirty(repo: Path, script: str, untracked: int) -> None:
    sh(script, repo)
    source = look(repo)

    assert source.dirty
    assert source.untracked == untracked


def test_touched_and_ignored_files_are_not_dirty(repo: Path) -> None:
    sh("echo '*.log' >> .git/info/exclude; echo x > x.log; touch -d 2001-01-01 app.py", repo)
    assert not look(repo).dirty


def test_a_detached_head_has_no_branch(repo: Path) -> None:
    sh("git checkout -q --detach", repo)
    assert look(repo).branch is None


def test_a_linked_worktree_is_a_source(repo: Path, tmp_path: Path) -> None:
    sh("git worktree add -q ../linked -b side", repo)
    linked = repo.with_name("linked")
    source = look(linked)
    control = ControlRepo(tmp_path / "run" / "control.git")
    control.create_from(source)

    assert (source.path, source.branch) == (linked, "side")
    assert control.base == source.commit


@pytest.mark.parametrize(
    ("clone", "shallow"),
    [("--depth 1", True), ("--shared", False), ("--bare", False), ("--reference src", False)],
)
def test_other_kinds_of_clones_are_sources(
    repo: Path, tmp_path: Path, clone: str, shallow: bool
) -> None:
    sh("echo 2 > app.py; git commit -qam two; git clone -q --bare . ../src", repo)
    sh(f"git clone -q {clone} file://{repo.parent}/src other", repo.parent)
    source = inspect_source(repo.with_name("other"), roots=[tmp_path])
    control = ControlRepo(tmp_path / "run" / "control.git")
    control.create_from(source)
    control.checkout(control.base, tmp_path / "ws" / "1-a")
    moved = ControlRepo(tmp_path / "host2" / "control.git")
    moved.create_from_pack(control.base_pack(), control.base, shallow=control.shallow)

    assert bool(source.shallow) == shallow
    assert (tmp_path / "ws" / "1-a" / "app.py").read_text() == "2\n"
    assert moved.base == source.commit
    count = sh("git rev-list --count HEAD", tmp_path / "ws" / "1-a").stdout.strip()
    assert count == ("1" if shallow else "2")


@pytest.mark.parametrize(
    ("script", "path", "said"),
    [
        ("", "missing", "does not exist"),
        ("touch file", "file", "is a file"),
        ("mkdir plain", "plain", "is no git repository"),
        ("git init -q empty", "empty", "has no commit yet"),
        ("mkdir lost; echo 'gitdir: ../gone' > lost/.git", "lost", "is no git dir"),
        ("ln -s /usr link", "link", "lies outside"),
    ],
)
def test_it_says_what_is_wrong(tmp_path: Path, script: str, path: str, said: str) -> None:
    sh(script, tmp_path)
    with pytest.raises(SourceFault, match=said) as caught:
        inspect_source(tmp_path / path, roots=[tmp_path])
    assert caught.value.field == "repo"


@pytest.mark.parametrize("case", ["RC126"])
def test_no_commit_is_found_first(case: str, folder: Path) -> None:
    sh("git init -q -b main .", folder)
    with pytest.raises(SourceFault, match="make a first commit"):
        look(folder)


def test_a_worktree_of_a_repository_outside_of_the_roots_is_refused(
    repo: Path, tmp_path: Path
) -> None:
    (tmp_path / "allowed").mkdir()
    sh(f"git worktree add -q {tmp_path}/allowed/linked -b side", repo)
    with pytest.raises(SourceFault, match="lies outside"):
        inspect_source(tmp_path / "allowed/linked", roots=[tmp_path / "allowed"])


def test_it_says_what_it_may_not_read(unprivileged: Path) -> None:
    repo = unprivileged / "a" / "repo"
    repo.mkdir(parents=True)
    sh(BASE, repo)
    repo.chmod(0)
    with pytest.raises(SourceFault, match="cannot be read"):
        look(repo)
    repo.chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_repository_of_another_user_is_a_source(repo: Path) -> None:
    sh("chown -R 65534 .", repo)
    assert look(repo).branch == "main"


def test_a_broken_repository_is_named(repo: Path) -> None:
    sh("find .git/objects -type f ! -name $(git rev-parse HEAD | cut -c3-) -delete", repo)
    with pytest.raises(SourceFault, match="lacks objects"):
        look(repo)


def test_it_refuses_what_is_too_large(repo: Path) -> None:
    with pytest.raises(SourceTooLarge, match="allowed") as caught:
        inspect_source(repo, roots=[repo.parent], max_bytes=3)
    assert caught.value.reason == "workspace_too_large"


def test_it_takes_the_projects_own_hook_along(repo: Path) -> None:
    hook = repo / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\nexit 1\n")
    assert look(repo).pre_commit_hook is None
    hook.chmod(0o755)
    assert look(repo).pre_commit_hook == b"#!/bin/sh\nexit 1\n"
    sh("mkdir hk; mv .git/hooks/pre-commit hk/; git config core.hooksPath hk", repo)
    assert look(repo).pre_commit_hook == b"#!/bin/sh\nexit 1\n"


def _with_submodule(repo: Path) -> Path:
    sh("git clone -q . ../inner", repo)
    sh(
        "git -c protocol.file.allow=always submodule add -q ../inner mod && git commit -qm mod",
        repo,
    )
    return repo / "mod"


def test_a_clean_submodule_is_no_obstacle(repo: Path, tmp_path: Path) -> None:
    _with_submodule(repo)
    source = look(repo)
    control = ControlRepo(tmp_path / "run" / "control.git")
    control.create_from(source)
    workspace = tmp_path / "ws" / "1-a"
    control.checkout(control.base, workspace)
    base = control.git.line("rev-parse", f"{control.base}^{{tree}}")

    assert source.has_submodules
    assert not source.dirty
    assert Snapshotter(control, workspace).snapshot().tree == base


@pytest.mark.parametrize("script", ["echo 2 > app.py", "git commit -q --allow-empty -m x"])
def test_a_dirty_submodule_is_named(repo: Path, script: str) -> None:
    inner = _with_submodule(repo)
    sh(f"git config user.email a@b; git config user.name A; {script}", inner)
    source = look(repo)

    assert source.dirty_submodules == ("mod",)
    with pytest.raises(SourceFault, match="the submodule mod has changes"):
        capture_dirty(source)


def test_the_working_tree_travels_as_a_commit(repo: Path, tmp_path: Path) -> None:
    script = "echo 2 > app.py; rm sub/s; echo n > new; echo no > x.log; echo '*.log' > .gitignore"
    sh(script, repo)
    source = look(repo)
    dirty = capture_dirty(source)
    control = ControlRepo(tmp_path / "run" / "control.git")
    control.create_from(source, dirty.pack, dirty.commit)
    control.checkout(dirty.commit, tmp_path / "ws" / "1-a")

    assert control.git.line("rev-parse", f"{dirty.commit}^") == source.commit
    found = sh("ls -A", tmp_path / "ws" / "1-a").stdout.split()
    assert found == [".git", ".gitignore", "app.py", "new"]
    assert (tmp_path / "ws" / "1-a" / "app.py").read_text() == "2\n"
    assert capture_dirty(source) == dirty


def test_a_clean_working_tree_needs_no_commit_of_its_own(repo: Path) -> None:
    source = look(repo)
    assert capture_dirty(source).commit == source.commit


def test_crlf_checkouts_are_not_dirty(repo: Path) -> None:
    sh("git config core.autocrlf true; rm app.py; git checkout -q app.py; touch app.py", repo)
    assert b"\r\n" in (repo / "app.py").read_bytes()
    assert not look(repo).dirty


def test_no_byte_of_the_source_changes_in_a_whole_run(repo: Path, tmp_path: Path) -> None:
    sh("echo 2 > app.py; echo n > new; git stash -q; echo 3 > app.py; echo n > new", repo)
    sh("touch -d 2001-01-01 sub/s; printf '#!/bin/sh\\n' > .git/hooks/pre-commit", repo)
    first = fingerprint(repo)
    source = look(repo)
    dirty = capture_dirty(source)
    control = ControlRepo(tmp_path / "run" / "control.git")
    control.create_from(source, dirty.pack, dirty.commit)
    workspace = tmp_path / "run" / "ws" / "1-a"
    control.checkout(control.base, workspace)
    snapshots = Snapshotter(control, workspace)
    before = snapshots.snapshot()
    sh("echo agent > app.py; git add -A; git commit -qm agent; git gc -q", workspace)
    after = snapshots.snapshot()
    deliver(control, number=1, title="Work", base=control.base, tree=after.tree)
    snapshots.undo(before, after)

    assert fingerprint(repo) == first


def test_the_import_is_made_once_and_whole(repo: Path, tmp_path: Path) -> None:
    source = look(repo)
    control = ControlRepo(tmp_path / "run" / "control.git")
    (tmp_path / "run" / ".control.git.0000").mkdir(parents=True)
    control.create_from(source)
    facts = fingerprint(control.folder)
    control.create_from(source)
    sh("echo 2 > app.py; git commit -qam two", repo)

    assert fingerprint(control.folder) == facts
    assert not (control.objects / "info/alternates").exists()
    with pytest.raises(WorkspaceFault, match="this run started from"):
        control.create_from(look(repo))


def test_a_pinned_commit_is_imported_also_when_the_branch_has_moved(
    repo: Path, tmp_path: Path
) -> None:
    source = look(repo)
    sh("git checkout -q --orphan other; git commit -qm other; git branch -qD main", repo)
    control = ControlRepo(tmp_path / "run" / "control.git")
    control.create_from(source)
    assert control.base == source.commit


def test_temporary_files_may_lie_on_another_file_system(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        monkeypatch.setattr(tempfile, "tempdir", elsewhere)
        control = ControlRepo(tmp_path / "run" / "control.git")
        source = look(repo)
        control.create_from(source)
    assert control.base == source.commit


def test_a_path_outside_of_the_roots_is_refused_whether_it_exists_or_not(
    repo: Path, tmp_path: Path
) -> None:
    for path in (repo, tmp_path / "nowhere"):
        with pytest.raises(SourceFault, match="lies outside"):
            inspect_source(path, roots=[tmp_path / "allowed"])
