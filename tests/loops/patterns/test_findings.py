"""When two reasons are the same finding (RC057)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loops.patterns.findings import as_feedback, repeated


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("The flag --dry is not documented.", "the flag `--dry` is not documented"),
        ("No test for 'x'", "No  test\nfor x!"),
        ("STRASSE: wrong", "straße wrong"),
        ("!!!", "!!!"),
        ("Step \u2460 fails", "step 1 fails"),
    ],
)
def test_case_quotes_sentence_marks_and_layout_do_not_count(before: str, now: str) -> None:
    assert repeated(["something else", now], as_feedback(["other", before])) == now


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("handle x < 0", "handle x > 0"),
        ("must be 3.5", "must be 35"),
        ("the flag --dry", "the flag dry"),
        ("no test", "no test for b"),
        ("?!", "..."),
        ("a", "not a"),
    ],
)
def test_another_finding_is_not_a_repeated_one(before: str, now: str) -> None:
    assert repeated([now], as_feedback([before])) is None


def test_free_guidance_holds_no_finding() -> None:
    assert repeated(["use a deque"], "use a deque") is None
    assert repeated(["use a deque"], "") is None


reason_texts = st.text(alphabet="ab -\n.<`").filter(str.strip)


@given(st.lists(reason_texts, min_size=1))
def test_every_reason_is_found_again_in_its_own_feedback(reasons: list[str]) -> None:
    for reason in reasons:
        assert repeated([reason], as_feedback(reasons)) == reason
