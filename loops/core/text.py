"""Small questions about text that comes from agents and commands."""

from __future__ import annotations

import re
from typing import Any

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def storable(text: str) -> bool:
    """Whether every database takes the text: no NUL and no lone surrogate."""
    return _UNSTORABLE.search(text) is None


def clean(text: str) -> str:
    """The text with U+FFFD in the place of what cannot be stored or sent (RC047)."""
    return _UNSTORABLE.sub("\ufffd", text)


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


def tail(text: str, *, lines: int, characters: int) -> str:
    """The end of the text: at most so many lines and so many characters.

    What was left out is named in a first line of its own.
    """
    kept = "\n".join(text.rstrip("\n").split("\n")[-lines:])[-characters:]
    left_out = len(text.rstrip("\n")) - len(kept)
    return f"[{left_out} characters left out]\n{kept}" if left_out else kept
