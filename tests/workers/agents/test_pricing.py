"""Prices by list and by profile: bands, caches, and models that nobody knows."""

from __future__ import annotations

from decimal import Decimal

import pytest

from workers.agents.base import Prices
from workers.agents.pricing import PriceList, Spent, list_prices, own_prices

HERE = "https://api.anthropic.com"


def listed(model: str) -> PriceList:
    """The list prices of a model that is known."""
    found = list_prices(model, HERE)
    assert found is not None
    return found


def test_list_prices_name_their_source_and_are_stored_as_text() -> None:
    stored = listed("claude-opus-5-5").row(1000).as_stored()
    assert stored.pop("source").startswith("genai-prices ")
    assert stored == {
        "input": "4", "output": "20", "cache_read": "0.2", "cache_write": "5",
        "cache_write_1h": "8",
    }  # fmt: skip


@pytest.mark.parametrize(("prompt", "cost"), [(100_000, 10_050), (100_001, 50_251)])
def test_a_long_prompt_is_settled_as_a_whole_by_its_own_band(prompt: int, cost: int) -> None:
    prices = listed("claude-haiku-5-5")
    assert prices.row(prompt).cost_microusd(Spent(input=prompt, output=100)) == cost


def test_the_band_is_decided_by_all_input_cache_reads_included() -> None:
    spent = Spent(input=1, cache_read=100_000)
    assert listed("claude-haiku-5-5").row(spent.prompt).cache_read == Decimal("0.05")


def test_a_reservation_takes_the_dearest_price_that_can_apply() -> None:
    prices = listed("claude-haiku-5-5")
    assert prices.worst_microusd(100_000, 1000) == 12_500 + 500
    assert prices.worst_microusd(100_001, 1000) == 62_501 + 2500
    for spent in (Spent(cache_write=100_001), Spent(input=100_001), Spent(cache_read=100_001)):
        row = prices.row(spent.prompt)
        assert row.cost_microusd(spent) <= prices.worst_microusd(spent.prompt, 0)


@pytest.mark.parametrize(
    ("model", "address"),
    [
        ("acme/unlisted-1", HERE),
        ("claude-opus-99", HERE),
        ("claude-opus-5-5", "http://127.0.0.1:1"),
    ],
)
def test_rc071_what_nobody_knows_has_no_price(model: str, address: str) -> None:
    assert list_prices(model, address) is None


def test_rc085_own_prices_with_a_cache_price() -> None:
    prices = Prices(input_usd_per_mtok=Decimal(3), output_usd_per_mtok=Decimal(15))
    row = own_prices(prices, cache_read=Decimal("0.30")).row(0)
    assert row.cost_microusd(Spent(input=1000, output=17, cache_read=700_000)) == 213_255


def test_own_prices_without_cache_prices_are_on_the_high_side() -> None:
    prices = Prices(input_usd_per_mtok=Decimal(4), output_usd_per_mtok=Decimal(20))
    row = own_prices(prices).row(0)
    assert (row.cache_read, row.cache_write, row.cache_write_1h) == (4, 5, 8)
