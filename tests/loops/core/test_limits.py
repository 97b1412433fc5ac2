"""Caps, and whether one more call fits under them."""

from __future__ import annotations

from typing import Any

import pytest

from loops.core.errors import ContractError
from loops.core.limits import Amount, Limits, first_refusal

CAPPED = {"model_calls": 5, "tool_calls": 5, "tokens": 5, "cost_microusd": 5}


@pytest.mark.parametrize("axis", CAPPED)
@pytest.mark.parametrize(
    ("used", "reserved", "asked", "fits"),
    [(0, 0, 5, True), (3, 1, 1, True), (3, 1, 2, False), (5, 0, 1, False), (0, 5, 1, False)],
)
def test_a_call_fits_up_to_the_cap_and_not_past_it(
    axis: str, used: int, reserved: int, asked: int, fits: bool
) -> None:
    refusal = first_refusal(
        Amount(**{axis: asked}),
        used=Amount(**{axis: used}),
        reserved=Amount(**{axis: reserved}),
        limits=Limits(iterations=1, **CAPPED),
    )
    if fits:
        assert refusal is None
    else:
        assert refusal is not None
        facts = (refusal.used, refusal.reserved, refusal.asked, refusal.cap)
        assert facts == (used, reserved, asked, 5)
        assert refusal.axis == axis.removesuffix("_microusd")
        assert f"limit reached: {refusal.axis} (cap 5" in str(refusal)


def test_an_axis_that_is_not_asked_for_is_not_looked_at() -> None:
    spent = Amount(tokens=9, model_calls=1)
    limits = Limits(iterations=1, tokens=5, model_calls=5)
    assert (
        first_refusal(Amount(model_calls=1), used=spent, reserved=Amount(), limits=limits) is None
    )


def test_no_cap_never_refuses() -> None:
    huge = Amount(model_calls=10**12, tool_calls=10**12, tokens=10**12, cost_microusd=10**12)
    assert first_refusal(huge, used=huge, reserved=huge, limits=Limits(iterations=1)) is None


def test_a_cap_of_zero_refuses_the_first_call() -> None:
    limits = Limits(iterations=1, model_calls=0)
    asked = Amount(model_calls=1)
    assert first_refusal(asked, used=Amount(), reserved=Amount(), limits=limits) is not None


@pytest.mark.parametrize(
    ("axis", "value"),
    [
        ("iterations", 0),
        ("iterations", -1),
        ("iterations", True),
        ("iterations", 1.5),
        ("iterations", "5"),
        ("tool_calls", 0),
        ("errors", -1),
        ("cost_microusd", -1),
        ("deadline_seconds", 0),
        ("active_seconds", 0),
    ],
)
def test_s1_03_a_cap_that_is_no_whole_number_is_refused(axis: str, value: Any) -> None:
    with pytest.raises(ContractError, match=rf"limits\.{axis}"):
        Limits(**{"iterations": 5, axis: value})


def test_limits_come_back_from_storage() -> None:
    limits = Limits(iterations=3, tokens=100, errors=0)
    assert Limits(**limits.as_dict()) == limits  # type: ignore[arg-type]
