"""Limits of a run, what it has used, and whether one more step fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from loops.core.errors import ContractError, LimitReached

MOST_COUNTED = 1_000_000_000
"""What every database can store, and no clock runs over with: more is no limit."""
MOST_SPENT = 1_000_000_000_000_000
"""The same for tokens and micro-dollars, which are summed in larger columns."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Caps of a run. None means no cap on that axis; iterations are always capped (S1-3)."""

    iterations: int
    model_calls: int | None = None
    tool_calls: int | None = None
    tokens: int | None = None
    cost_microusd: int | None = None
    """Millionths of a US dollar."""
    errors: int = 2
    active_seconds: int | None = None
    """Working time; waiting for people is excluded."""
    deadline_seconds: int | None = None
    """From submission, everything included."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None:
                continue
            least = 0 if item.name in ("errors", "cost_microusd", "model_calls", "tokens") else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ContractError(
                    f"limits.{item.name} must be a whole number of at least {least}, not {value!r}"
                )
            most = MOST_SPENT if item.name in ("tokens", "cost_microusd") else MOST_COUNTED
            if value > most:
                raise ContractError(f"limits.{item.name} must be at most {most}, not {value!r}")

    def as_dict(self) -> dict[str, int | None]:
        """The caps by axis, for storage."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Amount:
    """So much of every counted axis."""

    model_calls: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost_microusd: int = 0


def sum_of(amounts: Iterable[Amount]) -> Amount:
    """So much of every axis together."""
    each = list(amounts)
    return Amount(
        **{item.name: sum(getattr(one, item.name) for one in each) for item in fields(Amount)}
    )


def first_refusal(
    asked: Amount, *, used: Amount, reserved: Amount, limits: Limits
) -> LimitReached | None:
    """The first axis on which `asked` does not fit, as the error that says so, or None."""
    for item in fields(Amount):
        cap = getattr(limits, item.name)
        parts = [getattr(amount, item.name) for amount in (used, reserved, asked)]
        if cap is not None and parts[2] and sum(parts) > cap:
            return LimitReached(
                item.name.removesuffix("_microusd"),
                used=parts[0],
                reserved=parts[1],
                asked=parts[2],
                cap=cap,
            )
    return None
