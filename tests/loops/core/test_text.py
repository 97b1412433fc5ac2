"""What may be stored, and the end of a long text."""

from __future__ import annotations

import pytest

from loops.core.text import cleaned, for_terminal, one_line, storable, tail


@pytest.mark.parametrize(
    ("text", "answer"),
    [("", True), ("é😀\r\n\x01", True), ("a\0", False), ("\ud800", False), ("a\udfffb", False)],
)
def test_nul_and_lone_surrogates_cannot_be_stored(text: str, answer: bool) -> None:
    assert storable(text) is answer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\n", "a\nb"),
        ("a\nb\nc\n", "[2 characters left out]\nb\nc"),
        ("a\x0cb\nc", "a\x0cb\nc"),
        ("x" * 12, "[2 characters left out]\n" + "x" * 10),
        ("", ""),
    ],
)
def test_the_tail_keeps_the_end_and_says_what_it_left_out(text: str, expected: str) -> None:
    assert tail(text, lines=2, characters=10) == expected


def test_data_is_cleaned_with_the_places_where_it_was_not() -> None:
    data = {"a": ["x", "y\0"], "b\ud800": {"c": "\udfff"}, "n": 1}
    found, places = cleaned(data)
    assert found == {"a": ["x", "y\ufffd"], "b\ufffd": {"c": "\ufffd"}, "n": 1}
    assert places == ["a.1", "b\ufffd", "b\ufffd.c"]


@pytest.mark.parametrize(
    ("text", "lines", "line"),
    [
        ("plain é 😀", "plain é 😀", "plain é 😀"),
        ("\x1b[31mred\x07\x9b", "\\x1b[31mred\\x07\\x9b", "\\x1b[31mred\\x07\\x9b"),
        ("a\u202eb\u2066c\u200bd", "a\\u202eb\\u2066c\\u200bd", "a\\u202eb\\u2066c\\u200bd"),
        ("a\n  b\r\nc\rd", "a\n  b\nc\\x0dd", "a b c\\x0dd"),
        ("a\u2028b\x85\0\ud800", "a\\u2028b\\x85\\x00\\ud800", "a\\u2028b\\x85\\x00\\ud800"),
        ("tab\tstays, پا\u200cشد too", "tab\tstays, پا\u200cشد too", "tab\tstays, پا\u200cشد too"),
    ],
)
def test_a_terminal_shows_what_it_would_obey(text: str, lines: str, line: str) -> None:
    assert (for_terminal(text), one_line(text)) == (lines, line)
