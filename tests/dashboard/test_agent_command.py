"""`manage.py agent set`: a name that can stand everywhere, settings that can be stored."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.core.management import CommandError, call_command

from loops.models import AgentProfile

pytestmark = pytest.mark.django_db
ARGV = '{"argv": ["my-agent"]}'


def _set(name: str = "fixer", config: str = ARGV, *more: str) -> None:
    call_command("agent", "set", name, "command", "--config", config, *more)


@pytest.mark.parametrize("name", ["fixer", "gpt-4.1_x", "0", "a" * 50])
def test_letters_digits_and_three_signs_make_a_name(name: str) -> None:
    _set(name, ARGV, "--price", "0", "999999.999999")
    profile = AgentProfile.objects.get(name=name)
    assert profile.output_usd_per_mtok == Decimal("999999.999999")


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "\x1b[31mred", "a\u202eb", "é", "a" * 51, "x" * 500, ".a", "a\n", "a/b"],
)
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(CommandError, match="take up to 50 letters, digits") as caught:
        _set(name)
    assert len(str(caught.value)) < 300
    assert not AgentProfile.objects.exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"argv": ["a\\u0000b"]}', "--config argv.0: contains a NUL"),
        ('{"argv": ["\\ud800"]}', "--config argv.0: contains a NUL or half"),
        ('{"argv": ["a"], "argv": ["b"]}', "'argv' stands there twice"),
        ('{"argv": ["a"], "max_cost_usd": NaN}', "no JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"argv": "a"}', "--config argv: Input should be a valid tuple"),
        ('{"argv": ["a"], "x": 1}', "--config x: there is no such field"),
    ],
)
def test_settings_that_cannot_be_stored_or_read_two_ways_are_refused(
    config: str, message: str
) -> None:
    with pytest.raises(CommandError) as caught:
        _set("fixer", config)
    assert message in str(caught.value)
    assert not AgentProfile.objects.exists()


@pytest.mark.parametrize(
    "prices",
    [
        ("nan", "inf"),
        ("1", "inf"),
        ("sNaN", "1"),
        ("1000000", "1"),
        ("1", "0.0000001"),
        ("1e99", "1"),
    ],
)
def test_a_price_is_a_number_that_can_be_stored(prices: tuple[str, str]) -> None:
    with pytest.raises(CommandError, match="--price: must be from 0 to below 1000000"):
        _set("fixer", ARGV, "--price", *prices)


@pytest.mark.parametrize("most", ["0", "100001", "99999999999"])
def test_so_many_calls_at_once_are_refused(most: str) -> None:
    with pytest.raises(CommandError, match="--max-running: must be from 1 to 100000"):
        _set("fixer", ARGV, "--max-running", most)
