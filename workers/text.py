"""Bytes from commands and models, made safe to store and to show."""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    r"""
      (?:\x1b\[|\x9b) [0-?]* [ -/]* (?:[@-~]|\Z)          # colours, cursor moves
    | (?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])                # titles, links, device strings
      [^\x07\x1b\x9c\n]* (?:\x07|\x1b\\|\x9c|\Z)?
    | \x1b [ -/]* [0-~]?                                  # the two-character ones
    """,
    re.VERBOSE,
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LINE_ENDS = re.compile(r"\r+\n?")


def clean_text(raw: bytes | str) -> str:
    """Valid text without escape sequences and without control codes except newline and tab.

    Invalid bytes and lone surrogates become U+FFFD. Carriage returns become newlines, so that the
    states of a progress bar do not run into each other.
    """
    if isinstance(raw, bytes):
        text = raw.decode("utf-8", "replace")
    else:
        text = raw.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _CONTROLS.sub("", _LINE_ENDS.sub("\n", _ESCAPES.sub("", text)))
