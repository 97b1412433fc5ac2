"""Puts what one task came to into the text of the next: names only, no expressions.

What is put in is never read again, so a result that holds a placeholder stays text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

PARTS = ("result", "commit", "branch", "files", "outcome", "reason")
_PLACEHOLDER = re.compile(
    r"\{\{\s*(?:graph\.(?P<aim>aim)|nodes\.(?P<node>[A-Za-z0-9_-]+)\.(?P<part>[A-Za-z_]+))\s*\}\}"
)


@dataclass(frozen=True, kw_only=True)
class Placeholder:
    """One place to fill: the graph's aim, or a part of what a node came to."""

    text: str
    """As it stands there."""
    node: str = ""
    part: str = ""


def placeholders(text: str) -> list[Placeholder]:
    """Every placeholder of the text. Other braces are no placeholders and stay as they are."""
    return [_placeholder(match) for match in _PLACEHOLDER.finditer(text)]


def fill(text: str, value: Callable[[Placeholder], str]) -> str:
    """The text with every placeholder replaced, in one pass."""
    return _PLACEHOLDER.sub(lambda match: value(_placeholder(match)), text)


def _placeholder(match: re.Match[str]) -> Placeholder:
    return Placeholder(text=match[0], node=match["node"] or "", part=match["part"] or "")
