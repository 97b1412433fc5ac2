"""What a model's tokens cost: the profile's own prices, else the list of `genai-prices`.

The list is data of an installed package: nothing is fetched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from workers.agents.base import Prices

# What writing to the five-minute cache costs on top of plain input, where no price says more.
_WRITE_FACTOR = Decimal("1.25")
_LONG_WRITE_FACTOR = Decimal(2)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Tokens of one request by what they cost."""

    input: int = 0
    """Neither read from a cache nor written to one."""
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0

    @property
    def prompt(self) -> int:
        """All input: it decides on the price band."""
        return self.input + self.cache_read + self.cache_write + self.cache_write_1h

    @property
    def total(self) -> int:
        """Everything."""
        return self.prompt + self.output


@dataclass(frozen=True, kw_only=True)
class PriceRow:
    """US dollars per million tokens, which are micro-dollars per token."""

    source: str
    input: Decimal
    output: Decimal
    cache_read: Decimal
    cache_write: Decimal
    cache_write_1h: Decimal

    def cost_microusd(self, spent: Spent) -> int:
        """The cost, rounded up."""
        parts = [getattr(spent, axis) * Fraction(getattr(self, axis)) for axis in AXES]
        return math.ceil(sum(parts, start=Fraction(0)))

    def as_stored(self) -> dict[str, str]:
        """The row as it stands beside a recorded call."""
        return {"source": self.source} | {axis: f"{getattr(self, axis):f}" for axis in AXES}


AXES = tuple(item.name for item in fields(Spent))


@dataclass(frozen=True, kw_only=True)
class PriceList:
    """The price bands of one model: a prompt above `over` tokens is priced by its row as one."""

    bands: tuple[tuple[int, PriceRow], ...]
    """Ascending; the first is over nothing."""

    def row(self, prompt_tokens: int) -> PriceRow:
        """The row for a prompt of this size."""
        return [row for over, row in self.bands if not over or prompt_tokens > over][-1]

    def worst_microusd(self, prompt_tokens: int, output_tokens: int) -> int:
        """The most that a request with at most so many tokens can cost, cache writes included."""
        rows = [row for over, row in self.bands if not over or prompt_tokens > over]
        dearest = max(max(row.input, row.cache_write, row.cache_read) for row in rows)
        output = max(row.output for row in rows)
        return math.ceil(prompt_tokens * Fraction(dearest) + output_tokens * Fraction(output))


def own_prices(
    prices: Prices, *, cache_read: Decimal | None = None, cache_write: Decimal | None = None
) -> PriceList:
    """The prices of a profile. A cache price that it does not give is taken on the high side."""
    incoming = prices.input_usd_per_mtok
    written = incoming * _WRITE_FACTOR if cache_write is None else cache_write
    row = PriceRow(
        source="profile",
        input=incoming,
        output=prices.output_usd_per_mtok,
        cache_read=incoming if cache_read is None else cache_read,
        cache_write=written,
        cache_write_1h=max(written, incoming * _LONG_WRITE_FACTOR),
    )
    return PriceList(bands=((0, row),))


def list_prices(model: str, base_url: str) -> PriceList | None:
    """The list prices of today, or None when nobody knows what the model costs at this address."""
    return _list_prices(model, base_url, datetime.now(tz=UTC).date())


@lru_cache(maxsize=256)
def _list_prices(model: str, base_url: str, _today: date) -> PriceList | None:
    # It brings all prices of all providers along, and only this needs them.
    import genai_prices  # noqa: PLC0415

    try:
        found = genai_prices.calc_price(
            genai_prices.Usage(input_tokens=0, output_tokens=0), model, provider_api_url=base_url
        )
    except LookupError:
        return None
    prices = found.model_price
    if prices.input_mtok is None or prices.output_mtok is None:
        return None
    source = f"genai-prices {genai_prices.__version__} {found.provider.id}/{found.model.id}"
    return PriceList(bands=tuple((over, _row(prices, over, source)) for over in _starts(prices)))


def _starts(prices: Any) -> list[int]:
    tiered = [getattr(prices, f"{name}_mtok") for name in ("input", "output", "cache_read")]
    return sorted({0} | {tier.start for price in tiered for tier in _tiers(price)})


def _row(prices: Any, over: int, source: str) -> PriceRow:
    incoming = _at(prices.input_mtok, over) or Decimal(0)
    read, write = _at(prices.cache_read_mtok, over), _at(prices.cache_write_mtok, over)
    long_write = _at(prices.cache_write_1h_mtok, over)
    written = incoming * _WRITE_FACTOR if write is None else write
    return PriceRow(
        source=source,
        input=incoming,
        output=_at(prices.output_mtok, over) or Decimal(0),
        cache_read=incoming if read is None else read,
        cache_write=written,
        cache_write_1h=incoming * _LONG_WRITE_FACTOR if long_write is None else long_write,
    )


def _at(price: Any, over: int) -> Decimal | None:
    """The price of the band that begins above `over`."""
    if price is None or isinstance(price, Decimal):
        return price
    found: Decimal = price.base
    for tier in _tiers(price):
        if tier.start <= over:
            found = tier.price
    return found


def _tiers(price: Any) -> Iterable[Any]:
    return getattr(price, "tiers", ())
