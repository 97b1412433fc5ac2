"""Whether a loop still gets anywhere: plain functions over a short history of its attempts.

The history holds fingerprints only, nothing that a prompt could show. A wait for something that is
not ready leaves no mark in it, so it is never mistaken for a repetition (RC053).
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from loops.core.lifecycle import SENTENCES, StopReason

KEPT = 12

# What differs between two runs of the same command although nobody changed anything. Any other
# number may be a count of what is left, and one that falls is progress.
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:z|[+-]\d\d:?\d\d)?"
_UNIT = r"(?:ns|[uμ]s|ms|s|secs?|seconds?|mins?|minutes?|hours?)"
_CHANGING = re.compile(
    "|".join(
        (
            r"0x[0-9a-f]+",
            r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
            r"\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{12,}\b",  # digests
            rf"\b\d{{4}}[-/]\d\d[-/]\d\d(?:t{_CLOCK})?\b",
            rf"\b(?:{_MONTH}\s+\d{{1,2}}|\d{{1,2}}\s+{_MONTH})(?:,?\s+\d{{4}})?\b",
            rf"\b{_CLOCK}\b",
            rf"\b(?:\d+h\s?)?(?:\d+m\s?)?\d+(?:[.,]\d+)?\s?{_UNIT}\b",
            r"(?<=[\w.]\.)[a-z]\w*[:(]\d+(?:[:,]\s?\d+)?\)?",  # a.py:12:5, a.ts(3,4)
            r"(?<=\w):\d+(?::\d+)?(?=:)",  # Makefile:12:
            r"\b(?:line|ln|column|col|char)\b[\s:=#]*\d+",
            r"\b(?:pid|ppid|tid|process|thread|port|seed)\b[\s:=#]*\d+",
            r"(?<=\w)\[\d+\](?=:)|==+\d+==+",  # process ids, as in sshd[12]: and ==12==
            r"(?:localhost|\b\d+\.\d+\.\d+\.\d+):\d+",
            r"(?<=/tmp/)(?:[^/\s]+(?=/)|[^/\s:]*\d[^/\s:]*)|\bpytest-\d+\b|\btmp[a-z0-9_]{8}\b",
        )
    )
)
_QUOTES = re.compile("[`'\"\u2018\u2019\u201c\u201d]")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What one attempt leaves in the history."""

    before: str = ""
    """The work before the attempt: a tree, or a fingerprint of a text."""
    after: str = ""
    failure: str = ""
    """Fingerprint of how it failed; empty when it did not, or said nothing about it."""
    findings: tuple[str, ...] = ()
    """Fingerprints of what a review asked for."""
    done: str = ""
    """Fingerprint of what was done and what came of it; empty when that says nothing."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """How often is too often; 0 switches a rule off."""

    failures: int = 0
    """The same failure so many times in a row."""
    findings: int = 0
    """The same finding in so many reviews in a row."""
    idle: int = 0
    """So many attempts in a row that change nothing."""
    actions: int = 0
    """The same done so many times in a row with the same result."""
    returns: int = 0
    """So many times in a row back to the state before the last one: 2 is A, B, A, B."""


@dataclass(frozen=True, kw_only=True)
class Stall:
    """The loop gets nowhere."""

    cause: StopReason
    details: str = ""
    """How often it was seen, for people."""

    @property
    def sentence(self) -> str:
        """All of it, for people."""
        return f"{SENTENCES[self.cause]} {self.details}".strip()


def fingerprint(text: str) -> str:
    """Equal for texts that differ only in case, quotes, layout, and what changes by itself.

    That is times, places in a file, process ids, ports, addresses and names of temporary files.
    Empty for a blank text: of a failure without a word nothing is known.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    bare = " ".join(_CHANGING.sub("#", _QUOTES.sub("", folded)).split())
    return exact(bare) if bare else ""


def exact(text: str) -> str:
    """Equal for equal texts only."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def noted(trail: Sequence[Mark], mark: Mark) -> tuple[Mark, ...]:
    """The history with one more mark, cut to what the rules look at."""
    return (*trail, mark)[-KEPT:]


def stall(trail: Sequence[Mark], thresholds: Thresholds) -> Stall | None:
    """Why the loop should stop, or None while it may still get somewhere."""
    if repeated_findings(trail, thresholds.findings):
        return _stall(StopReason.REPEATED_FINDING, thresholds.findings)
    if same_failure(trail, thresholds.failures):
        return _stall(StopReason.SAME_FAILURE, thresholds.failures)
    if same_action(trail, thresholds.actions):
        return _stall(StopReason.NO_PROGRESS, thresholds.actions)
    if idle(trail, thresholds.idle):
        return _stall(StopReason.SPEND_WITHOUT_CHANGE, thresholds.idle)
    if back_and_forth(trail, thresholds.returns):
        return Stall(cause=StopReason.BACK_AND_FORTH)
    return None


def repeated_findings(trail: Sequence[Mark], times: int) -> set[str]:
    """The findings that stand in each of the last reviews (S2-34, RC057)."""
    sets = [set(mark.findings) for mark in _last(trail, times)]
    return set.intersection(*sets) if sets else set()


def same_failure(trail: Sequence[Mark], times: int) -> bool:
    """Whether the last attempts failed in the same way (RC055)."""
    failures = {mark.failure for mark in _last(trail, times)}
    return len(failures) == 1 and "" not in failures


def same_action(trail: Sequence[Mark], times: int) -> bool:
    """Whether the same was done again and again, with the same result each time (RC051)."""
    done = {mark.done for mark in _last(trail, times)}
    return len(done) == 1 and "" not in done


def idle(trail: Sequence[Mark], times: int) -> bool:
    """Whether the last attempts cost something and changed nothing."""
    last = _last(trail, times)
    return bool(last) and all(mark.after and mark.before == mark.after for mark in last)


def back_and_forth(trail: Sequence[Mark], returns: int) -> bool:
    """Whether the work went from A to B, back to A, again to B, and so on."""
    seen = [""]
    for tree in (tree for mark in trail for tree in (mark.before, mark.after)):
        if tree != seen[-1]:
            seen.append(tree)
    last = seen[-(returns + 2) :]
    pairs = zip(last, last[2:], strict=False)
    long_enough = returns > 0 and len(last) == returns + 2 and "" not in last
    return long_enough and all(state == later for state, later in pairs)


def _last(trail: Sequence[Mark], times: int) -> Sequence[Mark]:
    return trail[-times:] if 0 < times <= len(trail) else ()


def _stall(cause: StopReason, times: int) -> Stall:
    return Stall(cause=cause, details=f"Seen {times} times in a row.")
