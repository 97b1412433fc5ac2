"""Stored text for a page: as much as a person reads, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass

from loops.store import artifacts

MOST_CHARACTERS = 60_000


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """A part of a text, and how many lines are not in it."""

    text: str
    left_out: int = 0
    digest: str = ""
    """For the download; empty when the text is no artifact."""
    problem: str = ""


def head(text: str, lines: int, digest: str = "") -> Excerpt:
    """The first lines."""
    every = text.splitlines()
    return Excerpt(
        text="\n".join(every[:lines])[:MOST_CHARACTERS],
        left_out=max(0, len(every) - lines),
        digest=digest,
    )


def tail(text: str, lines: int, digest: str = "") -> Excerpt:
    """The last lines."""
    every = text.splitlines()
    return Excerpt(
        text="\n".join(every[-lines:])[-MOST_CHARACTERS:],
        left_out=max(0, len(every) - lines),
        digest=digest,
    )


def stored_head(digest: str, lines: int) -> Excerpt:
    """The first lines of an artifact."""
    return _stored(digest, lines, last=False)


def stored_tail(digest: str, lines: int) -> Excerpt:
    """The last lines of an artifact."""
    return _stored(digest, lines, last=True)


def _stored(digest: str, lines: int, *, last: bool) -> Excerpt:
    if not digest:
        return Excerpt(text="")
    try:
        text = artifacts.get_text(digest)
    except FileNotFoundError:
        return Excerpt(text="", problem="It is not in the artifact storage any more.")
    return tail(text, lines, digest) if last else head(text, lines, digest)
