"""Placeholders: names only, filled once."""

from __future__ import annotations

import pytest

from loops.core.placeholders import Placeholder, fill, placeholders


def test_it_finds_the_aim_and_parts_of_nodes() -> None:
    found = placeholders("{{ graph.aim }} and {{nodes.build-1.result}}")
    assert [(one.node, one.part) for one in found] == [("", ""), ("build-1", "result")]


@pytest.mark.parametrize(
    "text",
    ["{{ x }}", "{{ nodes.a }}", "{{ nodes.a.b.c }}", "{{ graph.aim|upper }}", "{% if %}", "${a}"],
)
def test_other_braces_stay_as_they_are(text: str) -> None:
    assert placeholders(text) == []
    assert fill(text, lambda _: "no") == text


def test_what_is_put_in_is_never_read_again() -> None:
    def value(found: Placeholder) -> str:
        return r"{{ nodes.b.result }} \1 \g<0>" if found.node == "a" else "b"

    assert fill("<{{ nodes.a.result }}>", value) == r"<{{ nodes.b.result }} \1 \g<0>>"
