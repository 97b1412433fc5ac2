"""Nine ways in which an agent-written workspace runs code through git; none may work on ours.

Each trap is sprung by plain git first, so that a trap that is no trap fails its test.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from loops.core.errors import WorkspaceFault
from tests.workers.conftest import START, bare_control, sh
from workers.control import ControlRepo
from workers.result import diff, review_packet, summary
from workers.snapshots import Snapshotter
from workers.source import capture_dirty, inspect_source

# id, trap set in a committed repository, git command that springs it
TRAPS = [
    ("fsmonitor", "git config core.fsmonitor '{evil}'", "git status"),
    (
        "hook",
        "mkdir -p .git/hooks; cp {evil} .git/hooks/post-index-change; "
        "cp {evil} .git/hooks/pre-commit; echo 2 > app.py",
        "git commit -qam x",
    ),
    (
        "clean-filter",
        "echo '* filter=f' > .gitattributes; git config filter.f.clean '{evil}'; echo 22 > app.py",
        "git diff",
    ),
    (
        "textconv",
        "echo '* diff=f' > .gitattributes; git config diff.f.textconv '{evil}'; echo 22 > app.py",
        "git diff",
    ),
    (
        "ssh-command",
        "git config core.sshCommand '{evil}'; git remote add origin ssh://h.invalid/r",
        "git fetch origin",
    ),
    (
        "nested-fsmonitor",
        "git init -q n; cd n; git config user.email a@b; git config user.name A; echo 1 > f; "
        "git add .; git commit -qm n; cd ..; git add n 2>/dev/null; git commit -qm link; "
        "echo 2 > n/f; git -C n config core.fsmonitor '{evil}'",
        "git diff HEAD",
    ),
    (
        "replaced-git-dir",
        "rm -rf .git; git init -q .; git config core.fsmonitor '{evil}'; git add app.py",
        "git status",
    ),
    (
        "git-file",
        "mv .git ../moved; git --git-dir=../moved config core.fsmonitor '{evil}'; "
        "echo 'gitdir: ../moved' > .git",
        "git status",
    ),
    (
        "embedded-bare-repository",
        "git init -q --bare b; git -C b config core.bare false; git -C b config core.worktree .; "
        "git -C b config core.fsmonitor '{evil}'",
        "cd b && git status",
    ),
    (
        "nested-filter",
        "git init -q n; cd n; git config user.email a@b; git config user.name A; "
        "echo '* filter=f' > .gitattributes; echo 1 > f; git add .; git commit -qm n; cd ..; "
        "git add n 2>/dev/null; git commit -qm link; git -C n config filter.f.clean '{evil}'; "
        "echo 22 > n/f",
        "git diff HEAD",
    ),
]


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A program that leaves a mark."""
    script = tmp_path / "evil"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n[ $# -gt 1 ] && exit 1\nexec cat $@\n")
    script.chmod(0o755)
    return script


@pytest.mark.parametrize(("trap", "spring"), [t[1:] for t in TRAPS], ids=[t[0] for t in TRAPS])
def test_the_workspace_runs_nothing_through_our_git(
    folder: Path, tmp_path: Path, evil: Path, trap: str, spring: str
) -> None:
    sh(START + "echo 1 > app.py; git add .; git commit -qm base", folder)
    control = ControlRepo(tmp_path / "run" / "control.git")
    control.create_from(inspect_source(folder, roots=[tmp_path]))
    workspace = tmp_path / "run" / "ws" / "1-a"
    control.checkout(control.base, workspace)
    snapshots = Snapshotter(control, workspace)
    before = snapshots.snapshot()
    sh(trap.format(evil=evil), workspace)
    mark = tmp_path / "ran"
    mark.unlink(missing_ok=True)

    after = snapshots.snapshot()
    review_packet(control.git, before.tree, after.tree)
    summary(control.git, before.tree, after.tree)
    diff(control.git, before.tree, after.tree)
    control.checkout(after.tree, workspace.with_name("2-b"))
    assert not mark.exists()

    sh(spring, workspace, check=False)
    assert mark.exists(), "this trap does not work even on plain git"
    mark.unlink()
    snapshots.undo(before, snapshots.snapshot())
    assert not mark.exists()
    assert snapshots.snapshot() == before


@pytest.mark.parametrize(
    ("trap", "spring"), [t[1:] for t in TRAPS[:6]], ids=[t[0] for t in TRAPS[:6]]
)
def test_a_source_runs_nothing_either(
    folder: Path, tmp_path: Path, evil: Path, trap: str, spring: str
) -> None:
    sh(START + "echo 1 > app.py; git add .; git commit -qm base", folder)
    sh(trap.format(evil=evil), folder)
    mark = tmp_path / "ran"
    mark.unlink(missing_ok=True)
    source = inspect_source(folder, roots=[tmp_path])
    if not source.dirty_submodules:
        capture_dirty(source)
    ControlRepo(tmp_path / "run" / "control.git").create_from(source)
    assert not mark.exists()

    sh(spring, folder, check=False)
    assert mark.exists(), "this trap does not work even on plain git"


def test_an_undo_does_not_write_through_links(folder: Path, tmp_path: Path) -> None:
    sh(START + "mkdir d; echo 1 > d/f; git add .; git commit -qm base", folder)
    control = ControlRepo(tmp_path / "run" / "control.git")
    control.create_from(inspect_source(folder, roots=[tmp_path]))
    workspace, outside = tmp_path / "run" / "ws" / "1-a", tmp_path / "outside"
    control.checkout(control.base, workspace)
    snapshots = Snapshotter(control, workspace)
    before = snapshots.snapshot()
    sh(f"mkdir -p {outside}/heads {outside}/.git; echo theirs > {outside}/f", tmp_path)
    sh(f"rm -r d; ln -s {outside} d; ln -s {outside} n", workspace)
    sh(
        f"rm -r .git/refs .git/index; ln -s {outside} .git/refs; ln -s {outside}/f .git/index",
        workspace,
    )
    snapshots.undo(before, snapshots.snapshot())

    assert (outside / "f").read_text() == "theirs\n"
    assert (outside / ".git").is_dir()
    assert not list((outside / "heads").iterdir())
    assert (workspace / "d" / "f").read_text() == "1\n"


def test_a_link_in_the_way_of_what_is_put_back_is_not_followed(
    folder: Path, tmp_path: Path
) -> None:
    sh(START + "git init -q empty", folder)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("theirs")
    snapshots = Snapshotter(bare_control(tmp_path), folder)
    before = snapshots.snapshot()
    sh(f"echo n > n; git add n; ln -s {outside}/precious .git/index.loopwarden", folder)
    snapshots.undo(before, snapshots.snapshot())
    sh(f"rm -r empty; ln -s {outside} empty", folder)
    with pytest.raises(WorkspaceFault):
        snapshots.put_git_dir("empty", before.nested[0][1])

    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert (outside / "precious").read_text() == "theirs"


def test_the_workers_environment_does_not_reach_git(
    folder: Path, tmp_path: Path, evil: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sh(START + "echo 1 > app.py; git add .; git commit -qm base", folder)
    for name, value in {
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor",
        "GIT_CONFIG_VALUE_0": str(evil),
        "GIT_DIR": "/nonexistent", "GIT_INDEX_FILE": "/nonexistent",
        "GIT_TRACE": f"{tmp_path}/trace",
        "GIT_EXTERNAL_DIFF": str(evil), "GIT_SSH_COMMAND": str(evil),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)

    assert inspect_source(folder, roots=[tmp_path]).branch == "main"
    assert not (tmp_path / "trace").exists()
    assert not (tmp_path / "ran").exists()
