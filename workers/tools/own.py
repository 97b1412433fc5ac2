"""Tools of the operator's own: `LOOPWARDEN_TOOLS=name:risk=module:function`."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import Any

from loops.core.errors import ContractError
from loops.core.plan import Risk
from workers.tools.base import Tool, arguments_of


@cache
def load_own(entries: tuple[str, ...]) -> tuple[Tool, ...]:
    """The tools of these settings, or a `ContractError` that says what is wrong."""
    return tuple(_load(entry) for entry in entries)


def _load(entry: str) -> Tool:
    declared, _, target = entry.partition("=")
    name, _, risk = (part.strip() for part in declared.partition(":"))
    module, colon, attribute = target.strip().partition(":")
    if not (name.isidentifier() and module and colon and attribute):
        raise ContractError(f"a tool is given as name:risk=module:function, not {entry!r}")
    if risk not in list(Risk):
        known = ", ".join(Risk)
        raise ContractError(f"tool {name!r} must declare its risk, one of {known}, not {risk!r}")
    try:
        function: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ContractError(f"tool {name!r} cannot be loaded: {error}") from error
    return Tool(
        name=name,
        about=(inspect.getdoc(function) or name).split("\n\n")[0],
        risk=Risk(risk),
        arguments=arguments_of(name, function),
        run=function,
        probe=getattr(function, "probe", None),
        target=target.strip(),
    )
