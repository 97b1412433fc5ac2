"""JSON of an agent, read as a whole or not at all (S0-7, S0-G3, S0-G5)."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from loops.core.errors import FormatFault

_JSON_SPACE = " \t\n\r"
_FENCE = re.compile(r"```json\r?\n(|.*\n)```", re.DOTALL)
_SHOWN_KEY_LENGTH = 60


def read_object(text: str, *, shape: str, fault: type[FormatFault]) -> dict[str, Any]:
    """The one JSON object that the text is.

    JSON white space around it is allowed, and one surrounding lower-case json fence. `shape` says
    how it should look. Raises `fault` with one of the codes empty, not_json, not_an_object and
    duplicate_key for every other text, and nothing else.
    """
    document = text.strip(_JSON_SPACE)
    if fenced := _FENCE.fullmatch(document):
        document = fenced[1].strip(_JSON_SPACE)
    if not document:
        raise fault("empty", f"The answer is empty. Send {shape}.")
    data = _load(document, shape, fault)
    if not isinstance(data, dict):
        raise fault("not_an_object", f"The answer must be one JSON object: {shape}.")
    return data


def shown_key(key: str) -> str:
    """A key for a message: bounded, and nothing in it can be mistaken for our words."""
    return ascii(key[:_SHOWN_KEY_LENGTH])


def _load(document: str, shape: str, fault: type[FormatFault]) -> Any:
    def not_json(detail: str) -> FormatFault:
        return fault(
            "not_json",
            f"The answer is not one JSON document: {detail}."
            f" Send {shape} and nothing before or after it.",
        )

    def refuse_constant(name: str) -> NoReturn:
        raise not_json(f"{name} is no JSON value")

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise fault(
                    "duplicate_key", f"The key {shown_key(key)} stands twice. Send each key once."
                )
            found[key] = value
        return found

    try:
        return json.loads(
            document, object_pairs_hook=without_duplicates, parse_constant=refuse_constant
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise not_json(f"{error.msg} at {where}") from error
    except RecursionError as error:
        raise not_json("it is nested too deeply") from error
    except ValueError as error:
        raise not_json("a number in it is too long") from error
