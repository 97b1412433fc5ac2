"""The page of what is promised is up to date, and no promise is without a test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import acceptance
from tests.acceptance import Case, Demands, page, problems, read_demands, read_tests

SMALL = Demands(
    numbers={"S0-7": "Strict.", "S1-X3": "Ask.", "D2": "Counted."},
    cases={"RC001": Case(topic="verdict", says="Read.", source="https://example.test/1")},
    other_cases=frozenset({"RC142"}),
    not_built={},
)
ALL = {
    "S0-7": {"tests/test_a.py": ["test_s0_07_strict"]},
    "S1-X3": {"tests/test_a.py": ["test_asks"]},
    "D2": {"tests/test_a.py": ["test_d2_counts"]},
    "RC001": {"tests/test_a.py": ["test_rc001_reads"]},
}


def test_the_page_is_what_the_tests_say() -> None:
    made = page(read_demands(), read_tests())
    assert acceptance.PAGE.read_text("utf-8") == made, "run: python -m tests.acceptance"


def test_every_number_has_a_test_and_every_test_a_number_that_exists() -> None:
    assert problems(read_demands(), read_tests()) == []


def test_all_that_does_not_fit_is_said() -> None:
    assert problems(SMALL, ALL) == []
    assert problems(SMALL, {k: v for k, v in ALL.items() if k != "D2"}) == ["D2 has no test"]
    waived = replace(SMALL, not_built={"D2": "later", "S9-9": "never"})
    assert problems(waived, ALL) == [
        "D2 has a test: take it out of not_built",
        "S9-9 does not exist, in not_built",
    ]
    assert problems(waived, {k: v for k, v in ALL.items() if k != "D2"})[1:] == []
    (found,) = problems(SMALL, ALL | {"S0-99": {"tests/test_a.py": ["test_s0_99"]}, "RC142": {}})
    assert found == "S0-99 does not exist, named by tests/test_a.py: test_s0_99"


def test_the_page_shows_what_has_no_test() -> None:
    waived = replace(SMALL, not_built={"D2": "later"})
    made = page(waived, {k: v for k, v in ALL.items() if k != "D2"})
    assert "| D2 | Counted. | not built yet: later |" in made
    assert "| S0-7 | Strict. | tests/test_a.py: `test_s0_07_strict` |" in made
    assert "| [RC001](https://example.test/1) | verdict | Read. |" in made


@pytest.mark.parametrize(
    ("source", "numbers"),
    [
        ("def test_s0_07_x(): ...", ["S0-7"]),
        ("def test_s0_15_s0_16_x(): ...", ["S0-15", "S0-16"]),
        ("def test_s1_x08_and_d3_rc051(): ...", ["S1-X8", "D3", "RC051"]),
        ("async def test_s4_g1(): ...", ["S4-G1"]),
        ("class TestIt:\n    def test_x(self):\n        'S3-2, and not S3-20x.'", ["S3-2"]),
        ("@mark(['a', param(1, id='S0-G6-late')])\ndef test_x(): ...", ["S0-G6"]),
        ("@mark(param(1, id='rc192 late'))\ndef test_x(): ...", ["RC192"]),
        ("CASES = ['RC001']\nMARK = mark(CASES)\n@MARK\ndef test_x(): ...", ["RC001"]),
        ("'S0-1 to S0-20'\n# S0-3\ndef test_x():\n    y = 'S0-2'", []),
        ("def help_s0_07(): ...\ndef test_us0_7(): ...", []),
    ],
)
def test_numbers_are_read_from_names_docstrings_and_decorators(
    source: str, numbers: list[str], tmp_path: Path
) -> None:
    (tmp_path / "test_a.py").write_text(source)
    assert sorted(read_tests(tmp_path)) == sorted(numbers)
