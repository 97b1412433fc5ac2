"""A loop condition is data: what it may say, and that nothing in it runs (S4-22)."""

from __future__ import annotations

import pytest

from loops.core.condition import BadCondition, Condition, parse

KINDS: dict[str, type[str | int]] = {"strategy": str, "iterations": int, "max": int}


def holds(text: str, strategy: str = "continue", iterations: int = 1, most: int = 3) -> bool:
    values = {"strategy": strategy, "iterations": iterations, "max": most}
    return parse(text, KINDS).holds(values)


@pytest.mark.parametrize(
    ("strategy", "iterations", "expected"),
    [
        ("continue", 1, True),
        ("refactor", 2, True),
        ("checks_failed", 2, True),
        ("pass", 1, False),
        ("continue", 3, False),
    ],
)
def test_s4_22_the_usual_condition(strategy: str, iterations: int, expected: bool) -> None:
    text = 'strategy != "pass" and iterations < max'
    assert holds(text, strategy, iterations) is expected


def test_and_binds_tighter_than_or() -> None:
    text = 'strategy == "pass" or strategy == "continue" and iterations >= 2'
    assert holds(text, "pass", 1)
    assert not holds(text, "continue", 1)
    assert holds(text, "continue", 2)


def test_s4_22_the_signs_of_cel_are_read_too() -> None:
    cel = parse('strategy != "pass" && iterations < max || max == 1', KINDS)
    assert cel == parse('strategy != "pass" and iterations < max or max == 1', KINDS)


def test_every_sign_compares() -> None:
    assert holds("iterations <= 1 and iterations >= 1 and iterations == 1 and 0 < iterations")
    assert holds("max > iterations and max != 4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "compares two values"),
        ("strategy", "compares two values"),
        ('strategy = "pass"', "cannot read the condition"),
        ('strategy == "pass" and', "compares two values"),
        ('strategy == "pass" iterations < max', "expected `and` or `or`"),
        ("grade > 3", "no value 'grade'; there are: strategy, iterations, max"),
        ("strategy < iterations", "cannot be compared"),
        ('strategy < "pass"', "cannot be compared"),
        ('iterations == "3"', "cannot be compared"),
        ("__import__('os').system('true') == 1", "cannot read the condition"),
        ('strategy == "pass"; 1 == 1', "cannot read the condition"),
    ],
)
def test_anything_else_is_refused_with_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(BadCondition, match=message.replace("(", r"\(")):
        parse(text, KINDS)


def test_it_is_a_value() -> None:
    assert parse("max > 1", KINDS) == parse(" max  >1 ", KINDS)
    assert isinstance(parse("max > 1", KINDS), Condition)
