"""What a tool is: its arguments, the worst it can do, and what it does."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel

from loops.core.errors import ContractError
from loops.core.plan import Risk
from loops.core.tooling import ToolInfo


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """What a tool gets beside its arguments."""

    folder: Path
    """The workspace."""
    idempotency_key: str
    """The same for the same action, whoever repeats it: hand it to the other side (S2-25)."""
    seconds: float
    """How long it may take. Then it is told so by `cancelled`, and ended."""
    cancelled: threading.Event
    """Set when its time is up or its run is stopped: end at once (S2-24)."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool of the registry."""

    name: str
    about: str
    risk: Risk
    arguments: type[BaseModel]
    run: Callable[[ToolContext, Any], str]
    """Raises `ToolError` when surely nothing was done; after anything else nobody knows."""
    in_workspace: bool = False
    """It changes nothing outside the workspace, whose snapshots take back what was half done."""
    most_seconds: float = math.inf
    needs: str = ""
    """`workspace`, `checks` or `hosts`: what must be there for it to be of use."""
    probe: Callable[[ToolContext, Any], bool | None] | None = None
    """Whether an action with this key happened; None when it cannot tell."""
    target: str = ""
    """`module:function` of a tool of the operator's own: it runs in a process of its own."""

    @property
    def info(self) -> ToolInfo:
        """As plans and executors are told of it."""
        schema = self.arguments.model_json_schema()
        return ToolInfo(name=self.name, about=self.about, risk=self.risk, schema=schema)

    @property
    def leaves_traces(self) -> bool:
        """Whether something outside may have changed when it did not end well."""
        return self.risk is not Risk.READ and not self.in_workspace


def arguments_of(name: str, function: Any) -> type[BaseModel]:
    """The pydantic model that the second parameter of an own tool is annotated with."""
    hints = {key: hint for key, hint in get_type_hints(function).items() if key != "return"}
    kinds = list(hints.values())
    if len(kinds) != 2 or kinds[0] is not ToolContext or not _is_model(kinds[1]):
        raise ContractError(
            f"tool {name!r} must be a function (ToolContext, arguments: a pydantic model) -> str"
        )
    model: type[BaseModel] = kinds[1]
    return model


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
