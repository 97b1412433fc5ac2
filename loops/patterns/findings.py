"""Reasons of a review as feedback, and whether a review says the same thing again (RC057)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from loops.core.progress import exact

_ITEM = "- "
_QUOTES = re.compile("[`'\"\u2018\u2019\u201c\u201d]")
_SENTENCE_MARK = re.compile(r"[.,;:!?]+(?=\s|$)")


def as_feedback(reasons: Iterable[str]) -> str:
    """The reasons as a list, one item each; further lines of a reason are indented."""
    return "\n".join(_ITEM + reason.strip().replace("\n", "\n  ") for reason in reasons)


def repeated(reasons: Iterable[str], feedback: str) -> str | None:
    """The first reason that already stood in the feedback (made by `as_feedback`), or None."""
    before = {_plain(item) for item in f"\n{feedback}".split(f"\n{_ITEM}")[1:]}
    return next((reason for reason in reasons if _plain(reason) in before), None)


def finding_keys(feedback: str) -> tuple[str, ...]:
    """A key for each item of the feedback (made by `as_feedback`): equal for equal findings."""
    return tuple(exact(_plain(item)) for item in f"\n{feedback}".split(f"\n{_ITEM}")[1:])


def _plain(text: str) -> str:
    """The text without case, quotes, sentence marks and layout. Operators and numbers stay."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    bare = _SENTENCE_MARK.sub("", _QUOTES.sub("", folded))
    return " ".join(bare.split()) or " ".join(text.split())
