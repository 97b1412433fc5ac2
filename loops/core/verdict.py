"""The reviewer's verdict, read strictly (S0-6, S0-7, S0-8, S0-G2, S0-G3, S0-G5).

Nothing is guessed, searched for or repaired here: a text is a verdict as a whole or it is none.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

from loops.core.errors import FormatFault
from loops.core.text import storable

_JSON_SPACE = " \t\n\r"
_FENCE = re.compile(r"```json\r?\n(|.*\n)```", re.DOTALL)
_SHAPE = '{"verdict": "APPROVED" or "CHANGES_REQUESTED", "reasons": [strings]}'
_SHOWN_KEY_LENGTH = 60

VERDICT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "verdict": {"type": "string", "enum": ["APPROVED", "CHANGES_REQUESTED"]},
        "reasons": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["verdict", "reasons"],
    "additionalProperties": False,
}
"""For providers that can shape an answer. `parse_verdict` still reads what comes."""


class VerdictKind(StrEnum):
    """The two verdicts there are."""

    APPROVED = "APPROVED"
    CHANGES_REQUESTED = "CHANGES_REQUESTED"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a reviewer decided, and why."""

    verdict: VerdictKind
    reasons: tuple[str, ...]

    @property
    def approved(self) -> bool:
        """Whether the work is accepted."""
        return self.verdict is VerdictKind.APPROVED


class InvalidVerdict(FormatFault):
    """The reviewer's text is no verdict. That is the reviewer's fault, never the coder's (S0-9).

    `code` is one of empty, not_json, not_an_object, duplicate_key, missing_verdict,
    bad_verdict_value, missing_reasons, bad_reasons_type, no_reasons, blank_reason, extra_key,
    bad_character.
    """


def parse_verdict(text: str) -> Verdict:
    """Read a verdict from the reviewer's whole text.

    JSON white space around the document is allowed, and one surrounding lower-case json fence.
    Raises `InvalidVerdict` for every other text, and nothing else.
    """
    document = text.strip(_JSON_SPACE)
    if fenced := _FENCE.fullmatch(document):
        document = fenced[1].strip(_JSON_SPACE)
    if not document:
        raise InvalidVerdict("empty", f"The answer is empty. Send {_SHAPE}.")
    data = _load(document)
    if not isinstance(data, dict):
        raise InvalidVerdict("not_an_object", f"The answer must be one JSON object: {_SHAPE}.")
    return _verdict(data)


def _load(document: str) -> Any:
    try:
        return json.loads(
            document, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _not_json(f"{error.msg} at {where}") from error
    except RecursionError as error:
        raise _not_json("it is nested too deeply") from error
    except ValueError as error:
        raise _not_json("a number in it is too long") from error


def _not_json(detail: str) -> InvalidVerdict:
    return InvalidVerdict(
        "not_json",
        f"The answer is not one JSON document: {detail}."
        f" Send {_SHAPE} and nothing before or after it.",
    )


def _refuse_constant(name: str) -> NoReturn:
    raise _not_json(f"{name} is no JSON value")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidVerdict(
                "duplicate_key", f"The key {_shown(key)} stands twice. Send each key once."
            )
        found[key] = value
    return found


def _verdict(data: dict[str, Any]) -> Verdict:
    if "verdict" not in data:
        raise InvalidVerdict("missing_verdict", f'The key "verdict" is missing. Send {_SHAPE}.')
    if data["verdict"] not in list(VerdictKind):
        raise InvalidVerdict(
            "bad_verdict_value",
            'The value of "verdict" must be exactly "APPROVED" or "CHANGES_REQUESTED",'
            " in capitals and without spaces.",
        )
    if "reasons" not in data:
        raise InvalidVerdict("missing_reasons", f'The key "reasons" is missing. Send {_SHAPE}.')
    extra = [_shown(key) for key in data if key not in ("verdict", "reasons")]
    if extra:
        raise InvalidVerdict(
            "extra_key", f'Only "verdict" and "reasons" are allowed. Leave out {extra[0]}.'
        )
    kind = VerdictKind(data["verdict"])
    return Verdict(verdict=kind, reasons=_reasons(kind, data["reasons"]))


def _reasons(kind: VerdictKind, reasons: Any) -> tuple[str, ...]:
    if not isinstance(reasons, list) or not all(isinstance(reason, str) for reason in reasons):
        raise InvalidVerdict("bad_reasons_type", '"reasons" must be a list of strings.')
    if not all(storable(reason) for reason in reasons):
        raise InvalidVerdict(
            "bad_character", "A reason holds a NUL or half of a surrogate pair. Leave it out."
        )
    if not all(reason.strip() for reason in reasons):
        raise InvalidVerdict(
            "blank_reason", "A reason is blank. Say in each reason what has to change."
        )
    if kind is VerdictKind.CHANGES_REQUESTED and not reasons:
        raise InvalidVerdict(
            "no_reasons",
            "CHANGES_REQUESTED needs at least one reason, so that the coder can act on it.",
        )
    return tuple(reasons)


def _shown(key: str) -> str:
    return ascii(key[:_SHOWN_KEY_LENGTH])
