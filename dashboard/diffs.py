"""Patches as rows of text for a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchedFile, PatchSet

from loops.store import artifacts

MOST_LINES = 400
MOST_WIDTH = 500
MOST_BYTES = 4_000_000


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line. `tone` is add, del, h (a hunk's head) or empty."""

    tone: str
    text: str


@dataclass(kw_only=True)
class FileDiff:
    """One file of a patch."""

    path: str
    note: str = ""
    """new, deleted, renamed from ..., binary"""
    added: int = 0
    removed: int = 0
    rows: list[Row] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Diff:
    """What of a patch is shown."""

    files: list[FileDiff]
    hidden: int = 0
    """Lines that are not shown."""
    problem: str = ""


def diff_of(digest: str) -> Diff:
    """The diff of a stored patch; lost or unreadable ones say so."""
    try:
        return _read(digest)
    except FileNotFoundError:
        return Diff(files=[], problem="The patch is not in the artifact storage any more.")


@lru_cache(maxsize=64)
def _read(digest: str) -> Diff:
    data = artifacts.get(digest)
    if len(data) > MOST_BYTES:
        return Diff(files=[], problem=f"The patch has {len(data):,} bytes: download it to read it.")
    return parse(data.decode("utf-8", "replace"))


def parse(text: str) -> Diff:
    """The first `MOST_LINES` lines of the patch, file by file."""
    try:
        patch = PatchSet.from_string(text) if text.strip() else []
    except UnidiffParseError:
        return _as_it_is(text)
    files, left, hidden = [], MOST_LINES, 0
    for patched in patch:
        rows = _rows(patched)
        hidden += max(0, len(rows) - left)
        files.append(
            FileDiff(
                path=patched.path,
                note=_note(patched),
                added=patched.added,
                removed=patched.removed,
                rows=rows[:left],
            )
        )
        left = max(0, left - len(rows))
    return Diff(files=files, hidden=hidden)


def _rows(patched: PatchedFile) -> list[Row]:
    rows = []
    for hunk in patched:
        source = f"{hunk.source_start},{hunk.source_length}"
        target = f"{hunk.target_start},{hunk.target_length}"
        where = f"@@ {source} +{target} @@"
        rows.append(Row(tone="h", text=f"{where} {hunk.section_header}".rstrip()))
        for line in hunk:
            tone = "add" if line.is_added else "del" if line.is_removed else ""
            rows.append(Row(tone=tone, text=_cut(f"{line.line_type}{line.value}".rstrip("\r\n"))))
    return rows


def _note(patched: PatchedFile) -> str:
    if patched.is_binary_file:
        return "binary"
    if patched.is_added_file:
        return "new"
    if patched.is_removed_file:
        return "deleted"
    if patched.is_rename:
        return f"renamed from {patched.source_file.removeprefix('a/')}"
    return ""


def _as_it_is(text: str) -> Diff:
    lines = text.splitlines()
    rows = [Row(tone="", text=_cut(line)) for line in lines[:MOST_LINES]]
    return Diff(files=[FileDiff(path="patch", rows=rows)], hidden=max(0, len(lines) - MOST_LINES))


def _cut(line: str) -> str:
    return line if len(line) <= MOST_WIDTH else line[:MOST_WIDTH] + " ..."
