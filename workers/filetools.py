"""Tools by which a model reads and changes the files of a workspace, and nothing beside them.

Every path is walked one folder at a time from the workspace's own, through no symbolic link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loops.core.errors import LoopwardenError
from loops.core.text import clean
from workers.agents.base import ToolSpec

_MOST_BYTES = 1_000_000
_MOST_CHARACTERS = 40_000
_MOST_PATHS = 1_000
_MOST_HITS = 200
_HIT_CHARACTERS = 300
_GIT = ".git"


class ToolError(LoopwardenError):
    """The tool cannot do that. The model is told, and may do something else."""


class ToolArguments(BaseModel):
    """What a tool is given."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ReadFile(ToolArguments):
    """Read a text file of the repository, or some of its lines."""

    path: str = Field(description="Relative to the repository.")
    first_line: int = Field(default=1, ge=1)
    lines: int = Field(default=2_000, ge=1, description="How many lines at most.")


class ListFiles(ToolArguments):
    """List the files below a folder of the repository."""

    path: str = Field(default=".", description="A folder, relative to the repository.")


class Search(ToolArguments):
    """Find the lines that hold a text, as it is, in the files below a folder."""

    text: str = Field(min_length=1, description="No pattern: it is looked for as it is.")
    path: str = Field(default=".", description="A folder, relative to the repository.")


class EditFile(ToolArguments):
    """Replace a piece of a file. It must stand there exactly once, white space included."""

    path: str = Field(description="Relative to the repository.")
    old: str = Field(min_length=1, description="What stands there now.")
    new: str = Field(description="What is to stand there.")


class WriteFile(ToolArguments):
    """Write a whole file, new or not."""

    path: str = Field(description="Relative to the repository.")
    content: str


ArgumentsT = TypeVar("ArgumentsT", bound=ToolArguments)


def read_arguments(kind: type[ArgumentsT], given: Mapping[str, Any]) -> ArgumentsT:
    """The arguments, or a `ToolError` that names what is wrong with them."""
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in found]
        raise ToolError("; ".join(lines)) from None


@dataclass(frozen=True, kw_only=True)
class FileTool:
    """A tool, its arguments and what it does in a folder."""

    name: str
    arguments: type[ToolArguments]
    run: Callable[[Path, Any], str]
    changes: bool = False

    @property
    def spec(self) -> ToolSpec:
        """As the model is told of it."""
        about = (self.arguments.__doc__ or "").strip()
        schema = self.arguments.model_json_schema()
        return ToolSpec(name=self.name, description=about, schema=schema)

    def use(self, folder: Path, given: Mapping[str, Any]) -> str:
        """What it has to say, capped. Raises `ToolError`."""
        arguments = read_arguments(self.arguments, given)
        try:
            said = clean(self.run(folder, arguments))
        except OSError as error:
            raise ToolError(f"that is not possible: {error.strerror}") from None
        except UnicodeError:
            raise ToolError("that is no valid text") from None
        left_out = len(said) - _MOST_CHARACTERS
        if left_out <= 0:
            return said
        return f"{said[:_MOST_CHARACTERS]}\n[{left_out} characters left out]"


def _read(folder: Path, given: ReadFile) -> str:
    lines = _content(folder, given.path).splitlines(keepends=True)
    if lines and given.first_line > len(lines):
        raise ToolError(f"{given.path} has only {len(lines)} lines")
    start = given.first_line - 1
    return "".join(lines[start : start + given.lines])


def _list(folder: Path, given: ListFiles) -> str:
    found: list[str] = []
    for path, _, _ in _files(folder, given.path):
        if len(found) == _MOST_PATHS:
            found.append(f"[more than {_MOST_PATHS} files: list a folder further down]")
            break
        found.append(path)
    return "\n".join(found)


def _search(folder: Path, given: Search) -> str:
    hits: list[str] = []
    for path, name, at in _files(folder, given.path):
        for number, line in enumerate(_lines(name, at), start=1):
            if given.text not in line:
                continue
            if len(hits) == _MOST_HITS:
                return "\n".join([*hits, f"[more than {_MOST_HITS} lines: search further down]"])
            hits.append(f"{path}:{number}: {line.strip()[:_HIT_CHARACTERS]}")
    return "\n".join(hits) or "nothing found"


def _edit(folder: Path, given: EditFile) -> str:
    content = _content(folder, given.path)
    times = content.count(given.old)
    if times != 1:
        raise ToolError(f"`old` stands {times} times in {given.path}; it must stand exactly once")
    _store(folder, given.path, content.replace(given.old, given.new))
    return f"{given.path} is changed"


def _write(folder: Path, given: WriteFile) -> str:
    _store(folder, given.path, given.content)
    return f"{given.path} is written"


def _parts(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ToolError(f"{name!r} is no path inside the repository")
    if any(part.lower() == _GIT for part in path.parts):
        raise ToolError("what git keeps for itself is out of reach")
    return path.parts


@contextmanager
def _opened(folder: Path, parts: tuple[str, ...], *, make: bool = False) -> Iterator[int]:
    """The folder that these parts lead to, as a descriptor."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=at)
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def _file(name: str, flags: int, at: int) -> int:
    """A plain file, opened without waiting for a pipe and without following a link."""
    file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644, dir_fd=at)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ToolError(f"{name} is no plain file")
    return file


def _content(folder: Path, name: str) -> str:
    *above, last = _parts(name) or ("",)
    with _opened(folder, tuple(above)) as at, os.fdopen(_file(last, os.O_RDONLY, at), "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ToolError(f"{name} is larger than {_MOST_BYTES} bytes")
    return data.decode()


def _store(folder: Path, name: str, content: str) -> None:
    data = content.encode()
    *above, last = _parts(name) or ("",)
    with (
        _opened(folder, tuple(above), make=True) as at,
        os.fdopen(_file(last, os.O_WRONLY | os.O_CREAT, at), "wb") as file,
    ):
        file.truncate(0)
        file.write(data)


def _files(folder: Path, name: str) -> Iterator[tuple[str, str, int]]:
    """Path, name and folder of every file and link below, in order; git's own are left out."""
    parts = _parts(name)
    with _opened(folder, parts) as top:
        for found, folders, files, at in os.fwalk(".", dir_fd=top, follow_symlinks=False):
            folders[:] = sorted(one for one in folders if one.lower() != _GIT)
            for file in sorted(files):
                if file.lower() != _GIT:
                    yield str(PurePosixPath(*parts, found, file)), file, at


def _lines(name: str, at: int) -> list[str]:
    """The lines of a text file; none for what is no text, or too large."""
    try:
        with os.fdopen(_file(name, os.O_RDONLY, at), "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (OSError, ToolError):
        return []
    if len(data) > _MOST_BYTES or b"\0" in data:
        return []
    return data.decode("utf-8", "replace").splitlines()


FILE_TOOLS = {
    tool.name: tool
    for tool in (
        FileTool(name="read_file", arguments=ReadFile, run=_read),
        FileTool(name="list_files", arguments=ListFiles, run=_list),
        FileTool(name="search", arguments=Search, run=_search),
        FileTool(name="edit_file", arguments=EditFile, run=_edit, changes=True),
        FileTool(name="write_file", arguments=WriteFile, run=_write, changes=True),
    )
}
