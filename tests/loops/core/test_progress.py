"""When a loop gets nowhere, and what must not be taken for it (RC053, RC055, RC057)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from loops.core.lifecycle import StopReason
from loops.core.progress import (
    KEPT,
    Mark,
    Thresholds,
    back_and_forth,
    fingerprint,
    idle,
    noted,
    repeated_findings,
    same_action,
    same_failure,
    stall,
)

USUAL = Thresholds(failures=3, findings=2, idle=2)


def trees(names: str) -> list[Mark]:
    """Attempts that led from tree to tree."""
    return [Mark(before=a, after=b) for a, b in pairwise(names)]


def failures(*texts: str) -> list[Mark]:
    return [
        Mark(before=f"b{n}", after=f"a{n}", failure=fingerprint(text))
        for n, text in enumerate(texts)
    ]


def test_rc055_numbers_times_pids_and_lines_do_not_make_another_failure() -> None:
    trail = failures(
        "SyntaxError: unterminated string (detected at line 12) in 0.12s, pid 4012",
        "SyntaxError: unterminated string (detected at line 13) in 0.13s, pid 4013",
        "SyntaxError: unterminated string (detected at line 17) in 0.17s, pid 4017",
    )
    assert not same_failure(trail[:2], 3)
    assert same_failure(trail, 3)
    found = stall(trail, USUAL)
    assert found is not None
    assert found.cause is StopReason.SAME_FAILURE
    assert found.sentence == (
        "The same failure comes back after each attempt. Seen 3 times in a row."
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("at 0x7f3a10 in f", "at 0x55d0ff in f"),
        ("2026-11-30 18:40:01 Error: x", "2026-12-01 09:00:59 error: 'x'"),
        (
            "job 3f2b8c1e-0a1b-4c2d-8e3f-123456789abc lost",
            "job 11111111-2222-4333-8444-abcdefabcdef lost",
        ),
        ("a.py:12:5: E501", "a.py:130:72: E501"),
        ("took 3 ms", "took  17 ms\n"),
        ("real 2m3.5s", "real 1h 0m 17s"),
        ("3 failed in 0.12s (0:01:23)", "3 failed in 9 seconds (0:00:02)"),
        ("2026-11-30T18:40:01.123Z E x", "2026-12-01T00:00:00+01:00 E x"),
        ("Mon Nov 30 22:09:40 UTC 2026", "Mon Nov  3 01:10:00 UTC 2026"),
        ("30 November 2026: x", "1 November 2026: x"),
        ("src/a.ts(3,4): error", "src/a.ts(17,1): error"),
        ("Makefile:12: missing", "Makefile:9: missing"),
        ("line 1 column 5 (char 4)", "line 3 column 1 (char 44)"),
        ("sshd[12]: no", "sshd[4711]: no"),
        ("==12==ERROR", "==99==ERROR"),
        ("connect 127.0.0.1:53412 port 81", "connect 127.0.0.1:40001 port 9"),
        ("localhost:5432 refused", "localhost:5433 refused"),
        ("/tmp/pytest-of-me/pytest-12/a.py", "/tmp/pytest-of-me/pytest-13/a.py"),
        ("/tmp/tmpab12cd34/a.py", "/tmp/tmpzz99yy88/a.py"),
        ("no /tmp/x81", "no /tmp/x9"),
        ("--randomly-seed=341", "--randomly-seed=17"),
        ("HEAD is 0123abc4567def", "HEAD is fedc9876543210"),
        ("check exited with 1", "check exited with  1"),
    ],
)
def test_rc055_what_changes_by_itself_is_left_out(one: str, other: str) -> None:
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Found 12 errors.", "Found 7 errors."),
        ("errors: 9", "errors: 8"),
        ("9", "8"),
        ("9 n.txt", "8 n.txt"),
        ("TOTAL 91%", "TOTAL 92%"),
        ("coverage 91.25", "coverage 91.50"),
        ("remaining=8", "remaining=7"),
        ("120 bytes over", "80 bytes over"),
        ("1,200 left", "1,100 left"),
        ("lines: 9", "lines: 8"),
        ("check 1: ci exited with 8", "check 1: ci exited with 7"),
        ("/tmp/box/a.py is bad", "/tmp/box/b.py is bad"),
        ("a.py:12: E501", "b.py:12: E501"),
        ("3 failed, 2 passed", "2 failed, 3 passed"),
        ("NameError: a", "NameError: b"),
        ("E501 line too long", "E502 line too long"),
    ],
)
def test_another_failure_stays_another_one(one: str, other: str) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_a_failure_without_a_word_is_never_the_same() -> None:
    assert not same_failure(failures("", " ", "\n"), 3)


def test_rc057_the_same_finding_in_two_reviews() -> None:
    trail = [Mark(findings=("a", "b")), Mark(findings=("b", "c"))]
    assert repeated_findings(trail, 2) == {"b"}
    assert repeated_findings([trail[0], Mark(), trail[1]], 2) == set()
    found = stall(trail, USUAL)
    assert found is not None
    assert found.cause is StopReason.REPEATED_FINDING


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("ABAB", True),
        ("xyABAB", True),
        ("ABA", False),
        ("ABCB", False),
        ("AAAA", False),
        ("", False),
    ],
)
def test_a_b_a_b_is_back_and_forth(names: str, expected: bool) -> None:
    assert back_and_forth(trees(names), 2) is expected


@pytest.mark.parametrize(
    ("names", "returns", "expected"),
    [
        ("ABA", 1, True),
        ("AB", 1, False),
        ("ABAB", 3, False),
        ("ABABA", 3, True),
        ("CBABAB", 4, False),
        ("BABABA", 4, True),
        ("ABABAB", 0, False),
    ],
)
def test_how_often_it_returns_is_the_task_s_own(names: str, returns: int, expected: bool) -> None:
    assert back_and_forth(trees(names), returns) is expected


def test_rc051_the_same_action_with_the_same_result() -> None:
    done = [Mark(done="date"), Mark(done="date"), Mark(done="date")]
    assert same_action(done, 3)
    assert not same_action(done[:2], 3)
    assert not same_action([*done[:2], Mark(), done[0]], 3)
    assert not same_action([Mark()] * 3, 3)
    found = stall(done, Thresholds(actions=3))
    assert found is not None
    assert (found.cause, found.sentence) == (
        StopReason.NO_PROGRESS,
        "The same was done again with the same result. Seen 3 times in a row.",
    )


def test_undone_and_made_again_is_back_and_forth() -> None:
    assert back_and_forth([Mark(before="A", after="B"), Mark(before="A", after="B")], 2)


def test_work_without_a_tree_is_never_back_and_forth() -> None:
    assert not back_and_forth([Mark(after="B")] * 4, 2)
    assert not back_and_forth([Mark()] * 4, 2)


def test_spend_without_change() -> None:
    assert idle(trees("AA") * 2, 2)
    assert not idle(trees("AA"), 2)
    assert not idle([*trees("AA"), *trees("AB")], 2)
    assert not idle([Mark(), Mark()], 2)


def test_zero_switches_a_rule_off() -> None:
    off = Thresholds()
    assert stall(failures("x", "x", "x", "x"), off) is None
    assert stall([Mark(findings=("a",))] * 4, off) is None
    assert stall(trees("AA") * 4, off) is None
    assert stall(trees("ABABABAB"), off) is None
    assert stall([Mark(done="x")] * 8, off) is None


def test_the_history_is_bounded() -> None:
    trail: tuple[Mark, ...] = ()
    for n in range(100):
        trail = noted(trail, Mark(after=str(n)))
    assert len(trail) == KEPT
    assert trail[-1].after == "99"
