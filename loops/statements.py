"""Runs the named statements of `statements.sql` on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from django.db import connection

_CLOCKS = {
    "sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')",
    "postgresql": "clock_timestamp()",
}
_EPOCH = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "EXTRACT(EPOCH FROM clock_timestamp())::double precision",
}
_LATER = {
    "sqlite": r"strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '+' || %(\1)s || ' seconds')",
    "postgresql": r"clock_timestamp() + %(\1)s * interval '1 second'",
}
_EARLIER = {
    "sqlite": r"strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '-' || %(\1)s || ' seconds')",
    "postgresql": r"clock_timestamp() - %(\1)s * interval '1 second'",
}
_LEFT = {
    "sqlite": r"(julianday(\1) - julianday('now')) * 86400.0",
    "postgresql": r"EXTRACT(EPOCH FROM \1 - clock_timestamp())::double precision",
}
_JSON = {"sqlite": r"%(\1)s", "postgresql": r"%(\1)s::jsonb"}


@cache
def _statements(vendor: str) -> dict[str, str]:
    text = Path(__file__).with_name("statements.sql").read_text()
    bodies = dict(
        re.findall(r"^-- (\w+): [^\n]*\n(.*?)(?=^-- |\Z)", text, re.MULTILINE | re.DOTALL)
    )
    found: dict[str, str] = {}
    for name, body in bodies.items():
        whole = re.sub(r"\{part:(\w+)\}", lambda part: bodies[part[1]].strip(), body)
        found[name] = spelled(whole, vendor)
    return found


def spelled(body: str, vendor: str) -> str:
    """A statement as this database reads it."""
    sql = body.strip().replace("{now}", _CLOCKS[vendor]).replace("{epoch}", _EPOCH[vendor])
    sql = re.sub(r"\{after:(\w+)\}", _LATER[vendor], sql)
    sql = re.sub(r"\{ago:(\w+)\}", _EARLIER[vendor], sql)
    sql = re.sub(r"\{left:(\w+)\}", _LEFT[vendor], sql)
    return re.sub(r"\{json:(\w+)\}", _JSON[vendor], sql)


def as_json(value: Any) -> str | None:
    """A value for a JSON column; None stays the database's NULL."""
    return None if value is None else json.dumps(value)


def execute(name: str, params: Mapping[str, Any]) -> int:
    """Run a statement and return how many rows it changed."""
    with connection.cursor() as cursor:
        cursor.execute(_statements(connection.vendor)[name], params)
        return int(cursor.rowcount)


def fetch(name: str, params: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Run a statement with RETURNING and return its row, or None when no row matched."""
    with connection.cursor() as cursor:
        cursor.execute(_statements(connection.vendor)[name], params)
        row = cursor.fetchone()
    return None if row is None else tuple(row)
