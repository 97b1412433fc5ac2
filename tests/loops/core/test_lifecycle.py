"""What may follow what: every pair of statuses, written out (S2-7, S2-10)."""

from __future__ import annotations

import itertools

import pytest

from loops.core.errors import IllegalMove
from loops.core.lifecycle import LIMIT_REASONS, SENTENCES, TERMINAL, RunStatus, StopReason
from loops.core.lifecycle import check_move as move

ALLOWED = {
    "queued": {"running", "at_gate", "budget_exhausted", "escalated", "cancelled", "failed"},
    "running": {
        "queued",
        "at_gate",
        "succeeded",
        "budget_exhausted",
        "escalated",
        "cancelled",
        "failed",
    },
    "at_gate": {"queued", "succeeded", "budget_exhausted", "escalated", "cancelled", "failed"},
}


@pytest.mark.parametrize(("old", "new"), list(itertools.product(RunStatus, repeat=2)))
def test_s2_07_every_pair_is_allowed_or_raises(old: RunStatus, new: RunStatus) -> None:
    if new in ALLOWED.get(old, set()):
        move(old, new)
    else:
        with pytest.raises(IllegalMove, match=f"{old} cannot become {new}"):
            move(old, new)


def test_s2_10_nothing_leaves_a_terminal_status() -> None:
    assert set(RunStatus) - set(ALLOWED) == TERMINAL


def test_every_reason_has_a_sentence_of_its_own() -> None:
    assert len(set(SENTENCES.values())) == len(StopReason)
    assert all(sentence.endswith(".") for sentence in SENTENCES.values())


def test_every_standstill_is_a_limit_and_a_missing_command_is_none() -> None:
    for cause in ("no_change", "same_failure", "repeated_finding", "spend_without_change",
                  "back_and_forth", "no_progress"):  # fmt: skip
        assert StopReason(cause) in LIMIT_REASONS
    assert StopReason.COMMAND_NOT_FOUND not in LIMIT_REASONS
    assert StopReason.ITERATIONS in LIMIT_REASONS
