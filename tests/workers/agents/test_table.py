"""The table of providers, and prices that are never floats."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from loops.core.errors import ContractError
from workers.agents import NAMES, UnknownProvider, all_providers, get
from workers.agents.base import Prices, ProviderKind, microusd

KINDS = all_providers()


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_every_provider_names_itself_and_refuses_unknown_settings(kind: ProviderKind[Any]) -> None:
    assert get(kind.name) is kind
    assert kind.summary.endswith(".")
    with pytest.raises(ValidationError, match="surprise"):
        kind.open({"surprise": 1})


def test_an_unknown_provider_is_refused_with_the_known_ones() -> None:
    assert [kind.name for kind in KINDS] == list(NAMES)
    with pytest.raises(UnknownProvider, match=r"'base'; there are anthropic, command, scripted"):
        get("base")


@pytest.mark.parametrize(
    ("price_in", "price_out", "tokens_in", "tokens_out", "cost"),
    [
        ("3", "15", 1_000, 200, 6_000),
        ("0.25", "1.25", 1, 0, 1),
        ("0.25", "1.25", 4, 4, 6),
        ("0.1", "0.2", 1, 1, 1),
        ("0", "0", 10**9, 10**9, 0),
        ("0.0000000000000000000000000000001", "0", 1, 0, 1),
        ("5", "25", 0, 0, 0),
    ],
)
def test_a_cost_is_rounded_up_to_whole_microdollars(
    price_in: str, price_out: str, tokens_in: int, tokens_out: int, cost: int
) -> None:
    prices = Prices(input_usd_per_mtok=Decimal(price_in), output_usd_per_mtok=Decimal(price_out))
    assert prices.cost_microusd(tokens_in, tokens_out) == cost


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.decimals(0, 100, places=4))
def test_a_cost_is_never_too_low_and_less_than_one_too_high(
    tokens_in: int, tokens_out: int, price: Decimal
) -> None:
    prices = Prices(input_usd_per_mtok=price, output_usd_per_mtok=price)
    exact = (tokens_in + tokens_out) * price
    assert exact <= prices.cost_microusd(tokens_in, tokens_out) < exact + 1


@pytest.mark.parametrize("price", [3.0, 3, "3", Decimal(-1), Decimal("NaN"), Decimal("Infinity")])
def test_a_price_is_a_decimal(price: Any) -> None:
    with pytest.raises(ContractError, match="Decimal"):
        Prices(input_usd_per_mtok=Decimal(1), output_usd_per_mtok=price)


@pytest.mark.parametrize(
    ("dollars", "micro"),
    [("0", 0), ("1", 1_000_000), ("0.0000001", 1), ("0.0123456", 12_346), ("2.50", 2_500_000)],
)
def test_dollars_are_rounded_up_to_whole_microdollars(dollars: str, micro: int) -> None:
    assert microusd(Decimal(dollars)) == micro
