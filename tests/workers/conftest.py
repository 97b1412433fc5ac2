"""Real repositories and real subprocesses, apart from the configuration of this machine."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.control import ControlRepo
from workers.git import make_git_dir
from workers.snapshots import Snapshotter

START = (
    "git init -q -b main . && git config user.email u@example.test && git config user.name U "
    "&& git config commit.gpgsign false\n"
)


@pytest.fixture(autouse=True)
def plain_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setups of these tests run git with no configuration but their own."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder with room beside it for a case's own files."""
    path = tmp_path / "case" / "work"
    path.mkdir(parents=True)
    return path


def sh(script: str, cwd: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a bash script in a folder."""
    return subprocess.run(
        ["bash", "-c", script], cwd=cwd, check=check, capture_output=True, text=True, timeout=60,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def bare_control(tmp_path: Path) -> ControlRepo:
    """A control repository that knows no base."""
    make_git_dir(tmp_path / "run" / "control.git")
    return ControlRepo(tmp_path / "run" / "control.git")


@pytest.fixture
def snapshotter(tmp_path: Path, folder: Path) -> Snapshotter:
    """Snapshots of `folder`, kept outside of it."""
    return Snapshotter(bare_control(tmp_path), folder)


def fingerprint(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file, link and folder below: its mode and its bytes."""
    found: dict[str, tuple[int, bytes]] = {}
    for path in sorted(root.rglob("*")):
        facts = path.lstat()
        if path.is_symlink():
            content = str(path.readlink()).encode()
        else:
            content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (facts.st_mode, content)
    return found


NOBODY = 65534


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder to work in as somebody who may not read everything: root becomes nobody."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if os.geteuid() != 0:
            yield folder
            return
        os.chown(folder, NOBODY, NOBODY)
        os.setresgid(NOBODY, NOBODY, 0)
        # The saved id stays root, so that there is a way back; bash insists on the real one.
        os.setresuid(NOBODY, NOBODY, 0)
        try:
            yield folder
        finally:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)
