"""What a run changed: the patch, the list of files, and the packet that a reviewer reads."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from workers.git import Git
from workers.text import clean_text
from workers.trees import NO_MODE, Change, changes

BIG_FILE = 1_000_000
PACKET_CHARS = 60_000
_READ_MOST = 4_000_000
_KINDS = {"120000": "link", "160000": "submodule"}
_DIFF = ("-r", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")


@dataclass(frozen=True, kw_only=True)
class ChangedFile:
    """One changed path. `path` is text for people; bytes that are no UTF-8 show as U+FFFD."""

    path: str
    kind: str
    """added, deleted, modified, mode change, or "type change link -> file" and the like."""
    added: int = 0
    """Lines; 0 for binary and big files."""
    removed: int = 0
    binary: bool = False
    big: bool = False
    size: int = 0
    """Bytes of the new side, of the old one when deleted."""
    sha256: str = ""
    """Of big files only."""

    @property
    def line(self) -> str:
        """For lists."""
        if self.big:
            return f"{self.kind}: {self.path} ({self.size} bytes, sha256 {self.sha256})"
        if self.binary:
            return f"{self.kind}: {self.path} (binary, {self.size} bytes)"
        return f"{self.kind}: {self.path} (+{self.added} -{self.removed})"


def diff(git: Git, before: str, after: str) -> bytes:
    """A complete patch, binary files included, that applies to `before`."""
    return git.run("diff-tree", "-p", "--binary", "--full-index", *_DIFF, before, after)


def summary(git: Git, before: str, after: str) -> list[ChangedFile]:
    """All changed files in path order."""
    found = changes(git, before, after)
    counts = _line_counts(git, before, after)
    sizes = _sizes(git, [_shown(change) for change in found])
    return [
        _changed_file(git, change, counts.get(change.path), size)
        for change, size in zip(found, sizes, strict=True)
    ]


def review_packet(git: Git, before: str, after: str, *, max_chars: int = PACKET_CHARS) -> str:
    """The list of all changed files, then as many of their patches as fit, as safe text.

    Big and binary files are listed by name and size only. What does not fit is said, never dropped
    silently.
    """
    files = summary(git, before, after)
    if not files:
        return "No file was changed."
    added, removed = sum(f.added for f in files), sum(f.removed for f in files)
    head = f"{len(files)} file(s) changed, {added} line(s) added, {removed} removed.\n"
    parts = [head, *_fitting([f.line for f in files], max_chars // 3, "more files")]
    left = max_chars - sum(len(part) + 1 for part in parts) - 100
    patches = _patches(git, before, after, files)
    return "\n".join([*parts, "", *_fitting(patches, left, "more patches, left out")])[:max_chars]


def _fitting(texts: Sequence[str], room: int, rest: str) -> list[str]:
    """The texts that fit into `room` characters; a long one is cut, the rest is counted."""
    most = max(room // 2, 200)
    kept: list[str] = []
    for number, text in enumerate(texts):
        short = text if len(text) <= most else f"{text[:most]}\n[... cut ...]"
        room -= len(short) + 1
        if room < 0:
            return [*kept, f"[... {len(texts) - number} {rest} ...]"]
        kept.append(short)
    return kept


def _patches(git: Git, before: str, after: str, files: Sequence[ChangedFile]) -> list[str]:
    """One patch per text file, without reading more than a few megabytes of them."""
    args = ("-c", f"core.bigFileThreshold={BIG_FILE}", "diff-tree", "-p", *_DIFF, before, after)
    done = git.attempt(*args, most=_READ_MOST)
    if done.code != 0:
        git.fail(args, done)
    sections = re.split(r"^(?=diff --git )", clean_text(done.out), flags=re.MULTILINE)
    texts = [section.rstrip("\n") for section in sections if section.startswith("diff --git ")]
    whole = sum(2 if file.kind.startswith("type change") else 1 for file in files)
    if len(texts) < whole and texts:
        texts[-1] += "\n[... the patch is longer than can be shown ...]"
    return [text for text in texts if "\nBinary files " not in text]


def _line_counts(git: Git, before: str, after: str) -> dict[bytes, tuple[int, int] | None]:
    """Added and removed lines by path; None for binary files, which big ones count as."""
    out = git.run(
        "-c", f"core.bigFileThreshold={BIG_FILE}", "diff-tree", "--numstat", "-z", *_DIFF,
        before, after,
    )  # fmt: skip
    counts: dict[bytes, tuple[int, int] | None] = {}
    for entry in out.split(b"\0")[:-1]:
        added, removed, path = entry.split(b"\t", 2)
        counts[path] = None if added == b"-" else (int(added), int(removed))
    return counts


def _shown(change: Change) -> str:
    """The side whose size counts."""
    return change.old if change.new_mode == NO_MODE else change.new


def _sizes(git: Git, oids: Sequence[str]) -> list[int]:
    asked = "".join(f"{oid}\n" for oid in oids).encode()
    if not asked:
        return []
    out = git.run("cat-file", "--batch-check=%(objectsize)", stdin=asked).decode().splitlines()
    # a submodule's commit is not in this repository: "<id> missing"
    return [int(line) if line.isdigit() else 0 for line in out]


def _changed_file(
    git: Git, change: Change, counts: tuple[int, int] | None, size: int
) -> ChangedFile:
    big = size > BIG_FILE
    added, removed = counts or (0, 0)
    return ChangedFile(
        path=clean_text(os.fsdecode(change.path).replace("\n", "\\n")),
        kind=_kind(change),
        added=added,
        removed=removed,
        binary=counts is None and not big,
        big=big,
        size=size,
        sha256=_sha256(git, _shown(change)) if big else "",
    )


def _sha256(git: Git, blob: str) -> str:
    return hashlib.sha256(git.run("cat-file", "blob", blob)).hexdigest()


def _kind(change: Change) -> str:
    if change.added:
        return "added"
    if change.new_mode == NO_MODE:
        return "deleted"
    old, new = (_KINDS.get(mode, "file") for mode in (change.old_mode, change.new_mode))
    if old != new:
        return f"type change {old} -> {new}"
    return "mode change" if change.old == change.new else "modified"
