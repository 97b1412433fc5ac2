"""The list for production is more than one rule: each of its items has tests of its own (S2-41)."""

from __future__ import annotations

import pytest

from tests.acceptance import read_demands, read_tests

ITEMS = {
    "what models and tools say is validated data": ["S2-2", "S2-11", "S2-22", "S2-28"],
    "circles, missing tools and too many steps are refused": ["S2-13", "S2-14", "S2-15"],
    "authorization and moves are outside of the model": ["S2-1", "S2-7", "S2-24"],
    "approvals are bound to canonical parameters": ["S2-9", "S2-G4"],
    "evidence is recorded and what is incomplete stays": ["S2-3", "S2-29", "S2-38"],
    "an unknown outcome is looked up first": ["S2-26", "S2-37"],
    "revisions, calls, tokens and time have ceilings": ["S2-5", "S2-33", "S2-G1"],
    "reviews are compared with people": ["S2-32"],
    "hostile output and ways around an approval are attacked": ["S2-39"],
    "one pass where revisions add nothing": ["S2-43"],
}


@pytest.mark.parametrize("item", ITEMS)
def test_s2_41_each_item_of_the_list_for_production_is_shown(item: str) -> None:
    demands, carried = read_demands(), read_tests()
    assert [number for number in ITEMS[item] if number not in carried] == []
    assert set(ITEMS[item]) <= set(demands.numbers)
