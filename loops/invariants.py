"""I1 to I10: what must hold of the stored rows, whatever crashed, repeated or got lost.

`invariants.sql` has the statements. They are run over windows of ids, so that a large database
costs many short queries and no long one.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection, models
from django.db.models import Max

from loops.core.canonical import digest as digest_of
from loops.core.errors import ContractError
from loops.core.lifecycle import TERMINAL
from loops.models import Escalation, Graph, Run
from loops.statements import spelled

WINDOW = 2_000
"""Runs or graphs that one statement looks at."""
_GRACE = {"sweeps": 10, "unclaimed": 60}
"""Seconds: two sweeps, and a wake-up that nobody claimed."""
_DIGESTS = "The digest of an item at the gate is that of what is shown."
_HEAD = re.compile(r"^-- (I\d+) (\w+) (\w+)(, swept)?: ([^\n]+)\n", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One row that breaks an invariant."""

    code: str
    """I1 to I11."""
    subject: str
    """Such as `run 12`."""
    rule: str
    """What should hold, in one sentence."""
    found: str

    def __str__(self) -> str:
        return f"{self.code}: {self.rule} But {self.subject} {self.found}."


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement of `invariants.sql`."""

    code: str
    name: str
    of: str
    """The table that its ids belong to; `books` for what is compared with a provider's."""
    swept: bool
    """It holds once a sweep has passed, not at every moment."""
    rule: str
    sql: str


@cache
def statements(vendor: str) -> tuple[Statement, ...]:
    """All of them, as this database reads them."""
    parts = _HEAD.split(Path(__file__).with_name("invariants.sql").read_text())[1:]
    terminal = ", ".join(f"'{status}'" for status in sorted(TERMINAL))
    return tuple(
        Statement(
            code=code,
            of=of,
            name=name,
            swept=bool(swept),
            rule=rule,
            sql=spelled(body.replace("{terminal}", terminal), vendor),
        )
        for code, of, name, swept, rule, body in zip(*[iter(parts)] * 6, strict=True)
    )


@cache
def _combined(vendor: str, of: str, swept: bool) -> str:
    """The statements on one table as one, which costs one round trip for a window."""
    parts = [
        f"SELECT {at}, broken.* FROM ({one.sql}) AS broken(row_id, found)"  # noqa: S608 - our own file
        if vendor == "postgresql"
        else f"SELECT {at}, * FROM ({one.sql})"  # noqa: S608 - our own file
        for at, one in enumerate(statements(vendor))
        if one.of == of and (swept or not one.swept)
    ]
    return "\nUNION ALL\n".join(parts)


def check(*, swept: bool = True, most: int = 20) -> list[Violation]:
    """Every violation of I1 to I10 but I4, at most `most` of each statement.

    `swept` of False leaves out what a sweep is yet to mend.
    """
    known, found = statements(connection.vendor), Counter[int]()
    violations: list[Violation] = []
    # The slot of a dispatcher that died is free again after two leases.
    waiting = _GRACE["unclaimed"] + 2 * settings.LOOPWARDEN_LEASE_SECONDS
    limits = {**_GRACE, "waiting": waiting, "slots": settings.LOOPWARDEN_SLOTS}
    for model, of in ((Run, "run"), (Graph, "graph")):
        sql = _combined(connection.vendor, of, swept)
        for window in _windows(model):
            for at, row_id, words in _rows(sql, {**limits, **window}):
                found[at] += 1
                if found[at] <= most:
                    violations.append(_violation(known[at], row_id, words))
    return violations + list(itertools.islice(_changed_packets(), most))


def check_books(books: Mapping[int, Mapping[str, int]], *, most: int = 20) -> list[Violation]:
    """I4: violations by what a provider billed, as `{run: {model_calls, tokens, cost_microusd}}`.

    Raises `ContractError` when the books cannot be read.
    """
    return list(itertools.islice(_underpaid(books), most))


def _underpaid(books: Mapping[int, Mapping[str, int]]) -> Iterator[Violation]:
    statement = next(s for s in statements(connection.vendor) if s.of == "books")
    for run_id, billed in books.items():
        unknown = set(billed) - {"model_calls", "tokens", "cost_microusd"}
        if unknown or not all(type(amount) is int for amount in billed.values()):
            raise ContractError(
                f"books of run {run_id}: give model_calls, tokens and cost_microusd as whole"
                f" numbers, not {dict(billed)}"
            )
        amounts = {"model_calls": 0, "tokens": 0, "cost_microusd": 0, **billed}
        for _, found in _rows(statement.sql, {"run": run_id, **amounts}):
            yield _violation(statement, run_id, found)
        if not Run.objects.filter(pk=run_id).exists():
            yield _violation(statement, run_id, "was billed and is not known here")


def _windows(model: type[models.Model]) -> Iterator[dict[str, int]]:
    last = model._default_manager.aggregate(last=Max("pk"))["last"] or 0
    for after in range(0, last, WINDOW):
        yield {"after": after, "upto": after + WINDOW}


def _violation(statement: Statement, row_id: int, found: str) -> Violation:
    of = "graph" if statement.of == "graph" else "run"
    return Violation(
        code=statement.code, subject=f"{of} {row_id}", rule=statement.rule, found=found
    )


def _rows(sql: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


def _changed_packets() -> Iterator[Violation]:
    items = Escalation.objects.only("packet", "digest", "run_id").order_by("pk")
    for item in items.iterator(chunk_size=200):
        if digest_of(item.packet) != item.digest:
            yield Violation(
                code="I9",
                subject=f"run {item.run_id}",
                rule=_DIGESTS,
                found=f"has item {item.pk}, whose packet was changed",
            )
