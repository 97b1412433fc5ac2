"""The result: a branch and a patch, never past the project's own hook."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from loops.core.errors import WorkspaceFault
from tests.workers.conftest import START, sh
from workers.control import ControlRepo
from workers.delivery import deliver, run_pre_commit_hook
from workers.sandbox import detect
from workers.snapshots import Snapshot, Snapshotter
from workers.source import inspect_source

SETUP = START + "printf 'x=1\\n' > app.py; ln -s app.py link; git add .; git commit -qm base"


@pytest.fixture
def control(folder: Path, tmp_path: Path) -> ControlRepo:
    sh(SETUP, folder)
    control = ControlRepo(tmp_path / "run" / "control.git")
    control.create_from(inspect_source(folder, roots=[tmp_path]))
    return control


@pytest.fixture
def workspace(control: ControlRepo) -> Path:
    path = control.folder.parent / "ws" / "1-a"
    control.checkout(control.base, path)
    return path


def test_a_workspace_is_a_repository_for_the_agent(control: ControlRepo, workspace: Path) -> None:
    assert sh("git status --porcelain", workspace).stdout == ""
    assert sh("git branch --show-current", workspace).stdout == "loopwarden/work\n"
    assert sh("git rev-parse HEAD", workspace).stdout.strip() == control.base
    assert sh("git remote", workspace).stdout == ""
    sh("echo 2 > app.py; git commit -qam mine", workspace)
    assert sh("git log -1 --format='%an %ae'", workspace).stdout.strip() == (
        "Loopwarden loopwarden@localhost"
    )
    assert not control.has(sh("git rev-parse HEAD", workspace).stdout.strip())


def test_the_next_workspace_holds_the_work_and_shows_it(
    control: ControlRepo, workspace: Path
) -> None:
    sh("echo 2 > app.py; echo n > new; rm link", workspace)
    tree = Snapshotter(control, workspace).snapshot().tree
    second = workspace.with_name("2-b")
    control.checkout(tree, second)

    assert Snapshotter(control, second).snapshot().tree == tree
    assert sh("git status --porcelain", second).stdout == " M app.py\n D link\n?? new\n"


def test_a_run_goes_on_on_another_host(
    control: ControlRepo, workspace: Path, tmp_path: Path
) -> None:
    sh(
        "echo 2 > app.py; git commit -qam mine; git init -q n; cd n; echo 1 > f; git add .",
        workspace,
    )
    snapshot = Snapshotter(control, workspace).snapshot()
    other = ControlRepo(tmp_path / "host2" / "control.git")
    other.create_from_pack(control.base_pack(), control.base)
    pack = control.export_pack(snapshot.objects, [control.base])
    assert not other.has(snapshot.tree)
    other.add_pack(pack)
    other.add_pack(pack)
    there = tmp_path / "host2" / "ws" / "2-b"
    other.checkout(snapshot.tree, there)
    snapshots = Snapshotter(other, there)
    snapshots.restore(Snapshot.load(snapshot.dump()))

    assert snapshots.snapshot() == snapshot
    assert sh("git status --porcelain", there / "n").stdout == "A  f\n"
    assert sh("git status --porcelain", there).stdout == " M app.py\n?? n/\n"


def test_the_result_is_one_commit_on_the_base_and_a_patch(
    control: ControlRepo, workspace: Path, folder: Path
) -> None:
    sh("printf 'a\\0b' > dump.bin; echo 2 > app.py; rm link; echo plain > link", workspace)
    tree = Snapshotter(control, workspace).snapshot().tree
    result = deliver(control, number=7, title="Make it\n two \x1b[1m", base=control.base, tree=tree)
    subprocess.run(["git", "apply", "--index", "-"], input=result.patch, cwd=folder, check=True)

    assert result.branch == "loopwarden/t-7"
    assert sh("git write-tree", folder).stdout.strip() == tree
    shown = control.git.line("log", "-1", "--format=%an <%ae> %s %P", "loopwarden/t-7")
    assert shown == f"Loopwarden <loopwarden@localhost> Make it two {control.base}"
    sh(f"git fetch -q {control.folder} loopwarden/t-7", folder)
    assert sh("git rev-parse FETCH_HEAD", folder).stdout.strip() == result.commit


def test_delivering_twice_is_one_commit_and_a_new_result_moves_the_branch(
    control: ControlRepo, workspace: Path
) -> None:
    snapshots = Snapshotter(control, workspace)
    sh("echo 2 > app.py", workspace)
    facts = {"number": 7, "title": "t", "base": control.base}
    first = deliver(control, tree=snapshots.snapshot().tree, **facts)
    again = deliver(control, tree=snapshots.snapshot().tree, **facts)
    sh("echo 3 > app.py", workspace)
    third = deliver(control, tree=snapshots.snapshot().tree, **facts)

    assert first == again
    assert third.commit != first.commit
    assert control.git.line("rev-parse", "loopwarden/t-7") == third.commit
    assert control.git.line("rev-parse", "loopwarden/t-7^") == control.base


@pytest.mark.parametrize("case", ["RC130"])
@pytest.mark.parametrize("setting", ["auto", "none"])
def test_the_projects_hook_can_refuse(
    case: str, control: ControlRepo, workspace: Path, setting: str
) -> None:
    hook = (
        b"#!/bin/sh\nif git diff --cached | grep -q '^+.*SECRET'; then echo no secrets; exit 1; fi"
    )
    sandbox = detect(setting).confine(  # type: ignore[arg-type]
        workspace, hidden=[control.folder.parent], readable=[control.objects]
    )
    clean = run_pre_commit_hook(hook, workspace, sandbox=sandbox, timeout=20)
    sh("echo SECRET=1 > cfg; rm -rf .git/hooks; ln -s /nonexistent .git/hooks", workspace)
    refused = run_pre_commit_hook(hook, workspace, sandbox=sandbox, timeout=20)

    assert clean.passed, clean.output
    assert not refused.passed
    assert "no secrets" in refused.output


def test_a_hook_needs_the_workspaces_git_dir(workspace: Path) -> None:
    sh("rm -rf .git", workspace)
    with pytest.raises(WorkspaceFault, match="lost its"):
        run_pre_commit_hook(b"#!/bin/sh\n", workspace, sandbox=detect("none"), timeout=5)


def test_a_workspace_is_never_made_twice(control: ControlRepo, workspace: Path) -> None:
    with pytest.raises(WorkspaceFault, match="no workspace can be made"):
        control.checkout(control.base, workspace)


def test_a_workspace_is_forgotten_whole(control: ControlRepo, workspace: Path) -> None:
    Snapshotter(control, workspace).snapshot()
    control.forget(workspace)

    assert not workspace.exists()
    assert not list((control.folder / "workspaces").iterdir())
