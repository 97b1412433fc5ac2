"""How the stand-ins of the outside world know which task a request belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MARK = re.compile(r"chaos-task ([0-9]+) project=(\w+) rounds=([0-9]+)")


@dataclass(frozen=True)
class Mark:
    """One line in the text of a task; it travels in every prompt."""

    number: int
    project: str
    rounds: int
    """In which round its reviewer approves."""

    def __str__(self) -> str:
        return f"chaos-task {self.number} project={self.project} rounds={self.rounds}"

    @classmethod
    def find(cls, text: str) -> Mark:
        """The mark in a prompt or a title. Raises `LookupError`."""
        found = _MARK.search(text)
        if found is None:
            raise LookupError(f"no mark of a task in {text[:200]!r}")
        return cls(int(found[1]), found[2], int(found[3]))
