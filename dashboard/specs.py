"""The fields of every pattern's spec in words, read from the models themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from loops.core.limits import Limits
from loops.patterns import all_patterns
from loops.patterns.base import Pattern

HEAD = """\
# Fields of every spec

Made by `python manage.py specs > docs/specs.md`; a test fails when this page is not up to date.

A spec is the object `spec` over HTTP and in the document of a graph, fields of the form on the
page, and `--set FIELD=TEXT` or `--spec FILE.json` on the command line, where `--check` and `--fix`
stand for `checks` and `fixes`. Agents stand beside it: `agents` over HTTP, `--agent ROLE=PROFILE`
on the command line.
"""
_WORDS = {"string": "text", "integer": "whole number", "boolean": "true or false", "null": "none"}


def reference(patterns: Iterable[Pattern[Any, Any]] | None = None) -> str:
    """The page, or the sections of these patterns only."""
    if patterns is not None:
        return "\n".join(map(_section, patterns))
    return "\n".join([HEAD, *map(_section, all_patterns()), _limits()])


def names() -> str:
    """The names of all fields, in one sentence for each pattern."""
    return " ".join(f"{one.name}: {', '.join(one.spec.model_fields)}." for one in all_patterns())


def _section(pattern: Pattern[Any, Any]) -> str:
    schema = pattern.spec.model_json_schema()
    required = schema.get("required", ())
    lines = [f"## {pattern.name}", "", pattern.summary, ""]
    if pattern.roles:
        named = pattern.roles.items()
        roles = (f"`{name}`{'' if always else ' (as needed)'}" for name, always in named)
        lines += [f"Roles: {', '.join(roles)}.", ""]
    lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        default = "required" if name in required else f"`{json.dumps(_usual(pattern, name))}`"
        kind = _kind(field)
        lines.append(f"| `{name}` | {kind} | {default} | {_cell(field.get('description', ''))} |")
    return "\n".join([*lines, "", f"Example: `{json.dumps(dict(pattern.example))}`", ""])


def _usual(pattern: Pattern[Any, Any], name: str) -> Any:
    return pattern.spec.model_fields[name].get_default(call_default_factory=True)


def _kind(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_kind(one) for one in field["anyOf"])
    if "enum" in field:
        return " or ".join(f"`{one}`" for one in field["enum"])
    if field.get("type") == "array":
        return f"list of {_kind(field['items'])}s"
    word = _WORDS[field["type"]]
    least, most = field.get("minimum"), field.get("maximum")
    if least is not None and most is not None:
        return f"{word}, {least} to {most}"
    return word if least is None else f"{word}, at least {least}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _limits() -> str:
    """One name on all faces but for money."""
    lines = ["## Limits", "", "| HTTP and graphs | command line |", "|---|---|"]
    for axis in Limits.__dataclass_fields__:
        over_http = "cost" if axis == "cost_microusd" else axis
        more = ': `{"amount": "2.50", "currency": "USD"}`' if over_http == "cost" else ""
        shell = "--max-iterations N" if axis == "iterations" else f"--limit {axis}=N"
        lines.append(f"| `limits.{over_http}`{more} | `{shell}` |")
    tail = "A dollar is 1,000,000 of `cost_microusd`; the page takes dollars and minutes."
    return "\n".join([*lines, "", tail, ""])
