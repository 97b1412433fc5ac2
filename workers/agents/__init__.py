"""The providers of agents: one file each, and one line in this table.

A module of this package becomes a provider by its name here and by its constant `PROVIDER`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from loops.core.errors import LoopwardenError

if TYPE_CHECKING:
    from workers.agents.base import ProviderKind

NAMES = (
    "anthropic",
    "command",
    "scripted",
)


class UnknownProvider(LoopwardenError):
    """There is no provider of this name."""


def get(name: str) -> ProviderKind[Any]:
    """The provider of this name. Raises `UnknownProvider`, which lists the known ones."""
    if name not in NAMES:
        raise UnknownProvider(f"no provider is called {name!r}; there are {', '.join(NAMES)}")
    kind: ProviderKind[Any] = import_module(f"workers.agents.{name}").PROVIDER
    return kind


def all_providers() -> tuple[ProviderKind[Any], ...]:
    """Every provider, in the order of the table."""
    return tuple(get(name) for name in NAMES)
