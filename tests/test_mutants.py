"""The mutants can be made: a guard that moved or went must not leave one that changes nothing."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_its_old_text_stands_once_in_the_code(mutant: Mutant) -> None:
    assert mutant.occurrences(ROOT) == 1
    assert mutant.new != mutant.old
    for test in mutant.tests:
        assert (ROOT / test.partition("::")[0]).is_file()


def test_no_mutant_is_there_twice() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 16
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
