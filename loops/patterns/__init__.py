"""The patterns: ways to loop, one file each, and one line in this table.

A module of this package becomes a pattern by its name here and by its constant `PATTERN`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from loops.core.errors import LoopwardenError

if TYPE_CHECKING:
    from loops.patterns.base import Pattern

NAMES = (
    "coder_reviewer",
    "check_fix",
    "implement_verify",
    "contract",
    "one_pass",
    "plan_execute_review",
)


class UnknownPattern(LoopwardenError):
    """There is no pattern of this name."""


def get(name: str) -> Pattern[Any, Any]:
    """The pattern of this name. Raises `UnknownPattern`, which lists the known ones."""
    if name not in NAMES:
        raise UnknownPattern(f"no pattern is called {name!r}; there are {', '.join(NAMES)}")
    pattern: Pattern[Any, Any] = import_module(f"loops.patterns.{name}").PATTERN
    return pattern


def all_patterns() -> tuple[Pattern[Any, Any], ...]:
    """Every pattern, in the order of the table."""
    return tuple(get(name) for name in NAMES)
