"""What a model can reach with its file tools: the workspace, and nothing beside it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from workers.filetools import FILE_TOOLS, ToolError


def use(folder: Path, name: str, **given: Any) -> str:
    """Use a tool."""
    return FILE_TOOLS[name].use(folder, given)


@pytest.fixture
def outside(folder: Path) -> Path:
    """A secret beside the workspace, and links that lead to it."""
    secret = folder.parent / "secret.txt"
    secret.write_text("secret")
    (folder / "link.txt").symlink_to(secret)
    (folder / "up").symlink_to(folder.parent)
    return secret


@pytest.mark.parametrize(
    "path",
    ["../secret.txt", "/etc/passwd", "a/../../secret.txt", "link.txt", "up/secret.txt",
     ".git/config", "sub/.GIT/config", "x\0y", "", ".", "up/new/file.txt"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["read_file", "write_file", "edit_file"])
def test_no_path_leads_out_of_the_workspace(
    folder: Path, outside: Path, name: str, path: str
) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("[core]")
    given: dict[str, dict[str, str]] = {
        "read_file": {},
        "write_file": {"content": "changed"},
        "edit_file": {"old": "secret", "new": "changed"},
    }
    with pytest.raises(ToolError):
        use(folder, name, path=path, **given[name])
    assert outside.read_text() == "secret"
    assert (folder / ".git" / "config").read_text() == "[core]"
    assert sorted(entry.name for entry in folder.parent.iterdir()) == ["secret.txt", "work"]


@pytest.mark.parametrize("path", ["..", "up", "/", ".git"])
@pytest.mark.parametrize("name", ["list_files", "search"])
def test_nothing_is_listed_or_found_outside(
    folder: Path, outside: Path, name: str, path: str
) -> None:
    with pytest.raises(ToolError):
        use(folder, name, path=path, **({"text": "secret"} if name == "search" else {}))


def test_lists_and_searches_pass_by_links_and_what_git_keeps(folder: Path, outside: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("secret")
    (folder / "b").mkdir()
    (folder / "b" / "two.py").write_text("no\n  the secret is here\n")
    (folder / "one.bin").write_bytes(b"\0secret")
    assert use(folder, "list_files") == "link.txt\none.bin\nup\nb/two.py".replace("up\n", "")
    assert use(folder, "search", text="secret") == "b/two.py:2: the secret is here"
    assert use(folder, "search", text="nowhere") == "nothing found"


def test_a_pipe_is_neither_read_nor_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for name, given in (("read_file", {}), ("write_file", {"content": "x"})):
        with pytest.raises(ToolError):
            use(folder, name, path="pipe", **given)
    assert use(folder, "search", text="x") == "nothing found"


def test_lines_of_a_file_are_read_as_they_are(folder: Path) -> None:
    (folder / "a.txt").write_bytes(b"one\r\ntwo\nthree")
    assert use(folder, "read_file", path="a.txt") == "one\r\ntwo\nthree"
    assert use(folder, "read_file", path="a.txt", first_line=2, lines=1) == "two\n"
    with pytest.raises(ToolError, match="only 3 lines"):
        use(folder, "read_file", path="a.txt", first_line=4)


def test_an_edit_must_match_exactly_once_and_keeps_everything_else(folder: Path) -> None:
    file = folder / "run.sh"
    file.write_bytes(b"a\r\nb\r\nb\r\n")
    file.chmod(0o755)
    with pytest.raises(ToolError, match="stands 2 times"):
        use(folder, "edit_file", path="run.sh", old="b", new="c")
    with pytest.raises(ToolError, match="stands 0 times"):
        use(folder, "edit_file", path="run.sh", old="B", new="c")
    assert use(folder, "edit_file", path="run.sh", old="a\r\nb", new="z") == "run.sh is changed"
    assert file.read_bytes() == b"z\r\nb\r\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o755


def test_a_file_is_written_whole_with_the_folders_it_needs(folder: Path) -> None:
    use(folder, "write_file", path="new/deep/file.py", content="long content\n")
    use(folder, "write_file", path="new/deep/file.py", content="short\n")
    assert (folder / "new" / "deep" / "file.py").read_text() == "short\n"


def test_what_is_no_text_is_refused(folder: Path) -> None:
    (folder / "a.bin").write_bytes(b"\xff\xfe")
    with pytest.raises(ToolError, match="no valid text"):
        use(folder, "read_file", path="a.bin")
    with pytest.raises(ToolError, match="no valid text"):
        use(folder, "write_file", path="b.txt", content="half \ud83d")
    assert not (folder / "b.txt").exists()


def test_what_a_tool_says_is_capped(folder: Path) -> None:
    (folder / "long.txt").write_text("x" * 100_000)
    (folder / "huge.txt").write_text("x" * 1_000_001)
    assert use(folder, "read_file", path="long.txt").endswith("[60000 characters left out]")
    with pytest.raises(ToolError, match="larger than"):
        use(folder, "read_file", path="huge.txt")
    (folder / "many.txt").write_text("hit\n" * 500)
    found = use(folder, "search", text="hit", path=".").splitlines()
    assert len(found) == 201
    assert found[-1] == "[more than 200 lines: search further down]"


def test_arguments_are_checked_and_the_answer_names_what_is_wrong(folder: Path) -> None:
    with pytest.raises(ToolError, match="path: Field required; file: Extra inputs"):
        use(folder, "read_file", file="a")
    for tool in FILE_TOOLS.values():
        assert tool.spec.schema["additionalProperties"] is False
        assert tool.spec.description.endswith(".")
