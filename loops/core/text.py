"""Small questions about text that comes from agents and commands."""

from __future__ import annotations

import re

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def storable(text: str) -> bool:
    """Whether every database takes the text: no NUL and no lone surrogate."""
    return _UNSTORABLE.search(text) is None


def clean(text: str) -> str:
    """The text with U+FFFD in the place of what cannot be stored or sent (RC047)."""
    return _UNSTORABLE.sub("\ufffd", text)


def last_line(text: str) -> str:
    """The last line that is not blank."""
    return text.strip().rpartition("\n")[2].strip()


def tail(text: str, *, lines: int, characters: int) -> str:
    """The end of the text: at most so many lines and so many characters.

    What was left out is named in a first line of its own.
    """
    kept = "\n".join(text.rstrip("\n").split("\n")[-lines:])[-characters:]
    left_out = len(text.rstrip("\n")) - len(kept)
    return f"[{left_out} characters left out]\n{kept}" if left_out else kept
