"""What may be stored, and the end of a long text."""

from __future__ import annotations

import pytest

from loops.core.text import storable, tail


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
