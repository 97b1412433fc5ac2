"""Calendar days of a time zone, as spans of real time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from loops.core.errors import ContractError


@dataclass(frozen=True, kw_only=True)
class LocalDay:
    """From `starts_at` until before `ends_at`, both in UTC: 23 to 25 hours where clocks change."""

    date: date
    starts_at: datetime
    ends_at: datetime


def zone_of(name: str) -> ZoneInfo:
    """The zone of an IANA name such as Europe/Berlin. Raises `ContractError`."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ContractError(
            f"time_zone: {name!r} is no IANA time zone, such as UTC or Europe/Berlin"
        ) from error


def local_day(at: datetime, zone: str) -> LocalDay:
    """The day of the zone that the moment lies in."""
    place = zone_of(zone)
    day = at.astimezone(place).date()
    return LocalDay(
        date=day,
        starts_at=_midnight(day, place),
        ends_at=_midnight(day + timedelta(days=1), place),
    )


def _midnight(day: date, place: ZoneInfo) -> datetime:
    """Where clocks jump over midnight or show it twice, the first moment of the date."""
    return datetime.combine(day, time.min, place).astimezone(UTC)
