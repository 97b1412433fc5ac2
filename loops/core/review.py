"""The review of an attempt: grade, strategy and feedback, read strictly (S4-4, S4-21, S4-G2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from loops.core.errors import FormatFault
from loops.core.strict_json import read_object, shown_key
from loops.core.text import storable

LOWEST_GRADE, HIGHEST_GRADE = 0, 10
_SHAPE = (
    f'{{"grade": whole number from {LOWEST_GRADE} to {HIGHEST_GRADE},'
    ' "strategy": "pass" or "continue" or "refactor" or "abort", "feedback": string}'
)
REVIEW_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "grade": {"type": "integer"},
        "strategy": {"type": "string", "enum": ["pass", "continue", "refactor", "abort"]},
        "feedback": {"type": "string"},
    },
    "required": ["grade", "strategy", "feedback"],
    "additionalProperties": False,
}
"""For providers that can shape an answer. `parse_review` still reads what comes."""
_KEYS = ("grade", "strategy", "feedback")


class Strategy(StrEnum):
    """What a reviewer may ask for, from the mildest to the strictest."""

    PASS = "pass"  # noqa: S105 - no password
    CONTINUE = "continue"
    REFACTOR = "refactor"
    ABORT = "abort"


@dataclass(frozen=True, kw_only=True)
class Review:
    """What one reviewer said."""

    grade: int
    strategy: Strategy
    feedback: str


class InvalidReview(FormatFault):
    """The reviewer's text is no review.

    `code` is one of empty, not_json, not_an_object, duplicate_key, missing_key, extra_key,
    bad_grade, bad_strategy, bad_feedback, blank_feedback, bad_character.
    """


def parse_review(text: str) -> Review:
    """Read a review from the reviewer's whole text. Raises `InvalidReview`, and nothing else."""
    data = read_object(text, shape=_SHAPE, fault=InvalidReview)
    for key in _KEYS:
        if key not in data:
            raise InvalidReview("missing_key", f'The key "{key}" is missing. Send {_SHAPE}.')
    extra = [shown_key(key) for key in data if key not in _KEYS]
    if extra:
        raise InvalidReview("extra_key", f"Leave out {extra[0]}. Send {_SHAPE}.")
    strategy = data["strategy"]
    if not isinstance(strategy, str) or strategy not in list(Strategy):
        allowed = ", ".join(f'"{one}"' for one in Strategy)
        raise InvalidReview("bad_strategy", f'"strategy" must be exactly one of {allowed}.')
    return Review(
        grade=_grade(data["grade"]),
        strategy=Strategy(strategy),
        feedback=_feedback(data["feedback"], Strategy(strategy)),
    )


def strictest(reviews: Sequence[Review]) -> Review:
    """One review out of several: the strictest strategy, and what all who ask for more say."""
    order = list(Strategy)
    strategy = max((review.strategy for review in reviews), key=order.index)
    asking = [review for review in reviews if review.strategy is not Strategy.PASS]
    return Review(
        grade=min(review.grade for review in reviews),
        strategy=strategy,
        feedback="\n\n".join(review.feedback for review in asking or reviews[:1]),
    )


def _grade(grade: Any) -> int:
    whole = isinstance(grade, int) and not isinstance(grade, bool)
    if not whole or not LOWEST_GRADE <= grade <= HIGHEST_GRADE:
        raise InvalidReview(
            "bad_grade",
            f'"grade" must be a whole number from {LOWEST_GRADE} to {HIGHEST_GRADE}.',
        )
    return int(grade)


def _feedback(feedback: Any, strategy: Strategy) -> str:
    if not isinstance(feedback, str):
        raise InvalidReview("bad_feedback", '"feedback" must be a string.')
    if not storable(feedback):
        raise InvalidReview(
            "bad_character", '"feedback" holds a NUL or half of a surrogate pair. Leave it out.'
        )
    if strategy is not Strategy.PASS and not feedback.strip():
        raise InvalidReview(
            "blank_feedback",
            f'"feedback" is blank. With "{strategy}", say what went wrong and what to do instead.',
        )
    return feedback.strip()
