"""Small questions about text that comes from agents, commands and people."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

_BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNSEEN = set("\u00ad\u034f\u115f\u1160\u180e\u200b\u2060\u2061\u2062\u2063\u2064\ufeff")
_JOINERS = "\u200c\u200d"
_KEPT_CONTROLS = "\n\t"
_LINE_ENDS = "\u2028\u2029"
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


def cleaned(value: Any, where: str = "") -> tuple[Any, list[str]]:
    """JSON data with each text clean, and the dotted names of the places where one was not."""
    match value:
        case str():
            return clean(value), [] if storable(value) else [where]
        case list():
            items = [cleaned(item, _inside(where, at)) for at, item in enumerate(value)]
            return [item for item, _ in items], [name for _, names in items for name in names]
        case dict():
            found, places = {}, []
            for key, item in value.items():
                name = clean(str(key))
                found[name], names = cleaned(item, _inside(where, name))
                places += names if storable(str(key)) else [_inside(where, name), *names]
            return found, places
    return value, []


def _inside(where: str, part: str | int) -> str:
    return f"{where}.{part}" if where else str(part)


def must_show(text: str, at: int) -> bool:
    """Whether this character would hide or reorder its neighbours, so that it must be named."""
    char = text[at]
    if char in _JOINERS:
        return not _joins(text, at)
    if char in _BIDI or char in _UNSEEN:
        return True
    return unicodedata.category(char) in ("Cc", "Cs") and char not in _KEPT_CONTROLS


def _joins(text: str, at: int) -> bool:
    """Emoji, Persian and Indic scripts need joiners: there they are spelling, not hiding."""
    before, after = text[at - 1 : at] or " ", text[at + 1 : at + 2] or " "
    return not (before.isascii() or after.isascii()) and not (
        before in _JOINERS or after in _JOINERS
    )


def for_terminal(text: str) -> str:
    """The text with every character that could steer a terminal as a visible escape.

    Line ends stay; where only one line may stand, use `one_line`.
    """
    lines = text.replace("\r\n", "\n")
    if lines.replace("\n", "").isprintable() and lines.isascii():
        return lines
    return "".join(
        _escape(char) if must_show(lines, at) or char in _LINE_ENDS else char
        for at, char in enumerate(lines)
    )


def one_line(text: str) -> str:
    """The same on one line, so that no text can pass for a line of ours."""
    return " ".join(part.strip() for part in for_terminal(text).split("\n")).strip()


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def tail(text: str, *, lines: int, characters: int) -> str:
    """The end of the text: at most so many lines and so many characters.

    What was left out is named in a first line of its own.
    """
    kept = "\n".join(text.rstrip("\n").split("\n")[-lines:])[-characters:]
    left_out = len(text.rstrip("\n")) - len(kept)
    return f"[{left_out} characters left out]\n{kept}" if left_out else kept
