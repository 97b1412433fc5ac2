"""Reviews are read strictly, and of several the strictest wins (S4-4, S4-21, S4-24, S4-G2)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loops.core.review import InvalidReview, Review, Strategy, parse_review, strictest


def text(**facts: Any) -> str:
    return json.dumps({"grade": 4, "strategy": "continue", "feedback": "more"} | facts)


def test_s4_04_a_review_has_grade_strategy_and_feedback() -> None:
    expected = Review(grade=4, strategy=Strategy.CONTINUE, feedback="more")
    assert parse_review(text()) == expected
    assert parse_review(f"\n```json\n{text()}\n```\n") == expected


@pytest.mark.parametrize("strategy", list(Strategy))
def test_s4_21_there_are_four_strategies(strategy: str) -> None:
    assert parse_review(text(strategy=strategy)).strategy == strategy


def test_a_pass_needs_no_feedback() -> None:
    assert parse_review(text(strategy="pass", feedback=" ")).feedback == ""


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("", "empty"),
        ("pass", "not_json"),
        (f"Here it is: {text()}", "not_json"),
        (text() + "\nDone.", "not_json"),
        (text()[:-1] + ",}", "not_json"),
        (text().replace("4", "NaN"), "not_json"),
        (f"```json\n```json\n{text()}\n```\n```", "not_json"),
        (f"```\n{text()}\n```", "not_json"),
        ("[]", "not_an_object"),
        ('{"grade": 1, "grade": 2}', "duplicate_key"),
        ('{"grade": 1, "strategy": "pass"}', "missing_key"),
        (text(notes=""), "extra_key"),
        (text(strategy="PASS"), "bad_strategy"),
        (text(strategy=["pass"]), "bad_strategy"),
        (text(strategy=None), "bad_strategy"),
        (text(grade="A"), "bad_grade"),
        (text(grade=True), "bad_grade"),
        (text(grade=4.0), "bad_grade"),
        (text(grade=11), "bad_grade"),
        (text(grade=-1), "bad_grade"),
        (text(feedback=["more"]), "bad_feedback"),
        (text(feedback=None), "bad_feedback"),
        (text(feedback=" \n"), "blank_feedback"),
        (text(strategy="abort", feedback=""), "blank_feedback"),
        (text(feedback="a\u0000b"), "bad_character"),
        (text(feedback="\ud800"), "bad_character"),
    ],
)
def test_s4_g2_anything_else_is_no_review(answer: str, code: str) -> None:
    with pytest.raises(InvalidReview) as caught:
        parse_review(answer)
    assert caught.value.code == code


def test_s4_24_the_strictest_strategy_wins_and_all_who_ask_for_more_are_heard() -> None:
    reviews = [
        Review(grade=8, strategy=Strategy.PASS, feedback="fine"),
        Review(grade=5, strategy=Strategy.CONTINUE, feedback="tests"),
        Review(grade=2, strategy=Strategy.REFACTOR, feedback="bus"),
    ]
    assert strictest(reviews) == Review(
        grade=2, strategy=Strategy.REFACTOR, feedback="tests\n\nbus"
    )
    assert strictest(reviews[:1]) == reviews[0]
