"""Micro-dollars for people."""

from __future__ import annotations

from decimal import Decimal


def dollars(microusd: int) -> str:
    """Micro-dollars as a decimal string: cents for people, more digits only where they matter."""
    amount = Decimal(microusd) / 1_000_000
    cents = amount.quantize(Decimal("0.01"))
    return f"{cents}" if cents == amount or amount >= 1 else f"{amount.normalize():f}"
