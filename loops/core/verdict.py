"""The reviewer's verdict, read strictly (S0-6, S0-7, S0-8, S0-G2, S0-G3, S0-G5).

Nothing is guessed, searched for or repaired here: a text is a verdict as a whole or it is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from loops.core.errors import FormatFault
from loops.core.strict_json import read_object, shown_key
from loops.core.text import storable

_SHAPE = '{"verdict": "APPROVED" or "CHANGES_REQUESTED", "reasons": [strings]}'

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
    """The reviewer's text is no verdict. That is the reviewer's fault, never the coder's.

    `code` is one of empty, not_json, not_an_object, duplicate_key, missing_verdict,
    bad_verdict_value, missing_reasons, bad_reasons_type, no_reasons, blank_reason, extra_key,
    bad_character.
    """


def parse_verdict(text: str) -> Verdict:
    """Read a verdict from the reviewer's whole text.

    Raises `InvalidVerdict` for every text that is none, and nothing else.
    """
    return _verdict(read_object(text, shape=_SHAPE, fault=InvalidVerdict))


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
    extra = [shown_key(key) for key in data if key not in ("verdict", "reasons")]
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
