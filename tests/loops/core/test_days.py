"""A project's day by the clock of its time zone (RC188, RC190)."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loops.core.days import local_day, zone_of
from loops.core.errors import ContractError

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/Chicago",
    "America/Havana",  # shows its midnight twice in autumn
    "America/Santiago",  # and has none on one day in spring
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",  # changes by half an hour
    "Pacific/Apia",  # had no 30 December 2011
)


@given(
    st.sampled_from(ZONES),
    st.integers(946_684_800, 2_114_380_800).map(lambda at: datetime.fromtimestamp(at, UTC)),
)
@example("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC))
@example("America/Havana", datetime(2026, 11, 1, 4, 30, tzinfo=UTC))
@example("America/Havana", datetime(2026, 11, 1, 5, 30, tzinfo=UTC))
@example("Asia/Beirut", datetime(2026, 3, 28, 22, tzinfo=UTC))
def test_every_moment_lies_in_one_day_and_the_next_begins_where_it_ends(
    zone: str, at: datetime
) -> None:
    day = local_day(at, zone)
    assert day.starts_at <= at < day.ends_at
    assert local_day(day.ends_at, zone).starts_at == day.ends_at
    assert local_day(day.ends_at - timedelta(microseconds=1), zone) == day
    assert day.date == at.astimezone(ZoneInfo(zone)).date()


@pytest.mark.parametrize(
    ("zone", "at", "hours"),
    [
        ("Europe/Berlin", datetime(2026, 3, 29, 12, tzinfo=UTC), 23),
        ("Europe/Berlin", datetime(2026, 10, 25, 12, tzinfo=UTC), 25),
        ("Europe/Berlin", datetime(2026, 11, 30, 12, tzinfo=UTC), 24),
        ("Australia/Lord_Howe", datetime(2026, 10, 4, 3, tzinfo=UTC), 23.5),
    ],
)
def test_days_on_which_clocks_change_are_shorter_or_longer(
    zone: str, at: datetime, hours: float
) -> None:
    day = local_day(at, zone)
    assert day.ends_at - day.starts_at == timedelta(hours=hours)


def test_rc188_no_hour_of_the_long_night_is_left_out_or_counted_twice() -> None:
    start = datetime(2026, 11, 1, 5, tzinfo=UTC)
    hours = [start + timedelta(hours=n) for n in range(6)]
    days = {local_day(hour, "America/Chicago") for hour in hours}
    local = [hour.astimezone(ZoneInfo("America/Chicago")).hour for hour in hours]
    assert [hour.hour for hour in hours] == [5, 6, 7, 8, 9, 10]
    assert local.count(1) == 2
    (day,) = days
    assert (day.date, day.starts_at) == (date(2026, 11, 1), start)
    assert day.ends_at - day.starts_at == timedelta(hours=25)


def test_rc190_half_past_midnight_comes_once_on_the_day_that_clocks_go_back() -> None:
    found = [
        moment
        for minute in range(0, 25 * 60, 30)
        if (moment := datetime(2026, 10, 24, 23, tzinfo=UTC) + timedelta(minutes=minute))
        .astimezone(ZoneInfo("Europe/Lisbon"))
        .strftime("%m-%d %H:%M")
        == "10-25 00:30"
    ]
    assert found == [datetime(2026, 10, 24, 23, 30, tzinfo=UTC)]
    assert local_day(found[0], "Europe/Lisbon").date == date(2026, 10, 25)


@pytest.mark.parametrize(
    "name", ["", "Europe", "Europe/Atlantis", "../../etc/passwd", "UTC\0", "+2"]
)
def test_what_is_no_time_zone_is_refused_by_name(name: str) -> None:
    with pytest.raises(ContractError, match="is no IANA time zone, such as UTC or Europe/Berlin"):
        zone_of(name)
