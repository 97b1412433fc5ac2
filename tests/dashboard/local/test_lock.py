from __future__ import annotations

import os
from pathlib import Path

import pytest

from dashboard.local.errors import AlreadyRunning, CannotStart
from dashboard.local.lock import FolderLock, Running, holder


def test_a_held_folder_names_its_holder(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire("http://127.0.0.1:1")
    try:
        assert holder(tmp_path) == Running(pid=os.getpid(), address="http://127.0.0.1:1")
        with pytest.raises(AlreadyRunning, match=f"process {os.getpid()} at http://127.0.0.1:1"):
            FolderLock(tmp_path).acquire("http://127.0.0.1:2")
        assert holder(tmp_path) == Running(pid=os.getpid(), address="http://127.0.0.1:1")
    finally:
        lock.release()
    assert holder(tmp_path) is None


def test_releasing_twice_is_harmless(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire("http://127.0.0.1:1")
    lock.release()
    lock.release()
    lock.acquire("http://127.0.0.1:2")
    lock.release()


def test_nobody_holds_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert holder(tmp_path / "nowhere") is None


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"pid": "x"}'])
def test_a_record_that_cannot_be_read_is_still_a_holder(tmp_path: Path, text: str) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire("http://127.0.0.1:1")
    (tmp_path / "supervisor.lock").write_text(text)
    try:
        assert holder(tmp_path) == Running(pid=0, address="")
        with pytest.raises(AlreadyRunning, match="another start"):
            FolderLock(tmp_path).acquire("http://127.0.0.1:2")
    finally:
        lock.release()


def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "supervisor.lock").mkdir()
    with pytest.raises(CannotStart, match=r"supervisor\.lock: Is a directory"):
        FolderLock(tmp_path).acquire("http://127.0.0.1:1")
