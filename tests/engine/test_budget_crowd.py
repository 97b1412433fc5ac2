"""A thousand calls at once, from threads of several processes, while Redis is emptied.

Nothing is spent above the cap, by the provider's own books.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
from django.db import connection
from django.db.models.functions import Now

from loops import feed
from loops.models import Budget, Graph, Run
from loops.store import attempts, days
from tests.engine import processes, rows, scenes
from tests.engine.spender import THREADS

pytestmark = pytest.mark.django_db(transaction=True)

PROCESSES = 3


def _claims(count: int, graph: Graph | None = None) -> list[attempts.Claim]:
    found = []
    for _ in range(count):
        run, claim = rows.claimed()
        rows.change(run, graph=graph, lease_expires_at=Now() + 720 * rows.AGO)
        found.append(claim)
    return found


def _scene(scope: str, cap: int) -> tuple[Budget, list[attempts.Claim]]:
    match scope:
        case "run":
            claims = _claims(1)
            rows.change(Run.objects.get(), limit_tokens=cap)
            return Run.objects.get(), claims
        case "graph":
            graph = Graph.objects.create(
                project=scenes.project(), title="g", aim="g", limit_tokens=cap
            )
            return graph, _claims(6, graph)
    return days.configure(scenes.project(), daily_tokens=cap), _claims(6)


def _spender(*told: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.engine.spender", *told],
        cwd=processes.ROOT,
        # Starting takes longer than the usual lease, and nobody renews this one.
        env=processes.environment(LOOPWARDEN_LEASE_SECONDS="3600"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _written(book: Path) -> int:
    return len(book.read_text().split())


def _ended(spenders: list[subprocess.Popen[str]]) -> bool:
    return all(one.poll() is not None for one in spenders)


@pytest.mark.parametrize(("scope", "calls"), [("run", 1_008), ("graph", 360), ("day", 360)])
def test_calls_of_several_processes_stay_below_the_cap(
    scope: str, calls: int, tmp_path: Path
) -> None:
    each, cap = calls // (PROCESSES * THREADS), calls * 40
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode=WAL")
    row, claims = _scene(scope, cap)
    book = tmp_path / "book"
    book.touch()
    told = json.dumps([asdict(claim) for claim in claims])
    spenders = [
        _spender(told, str(book), str(THREADS * number), str(each)) for number in range(PROCESSES)
    ]
    for one in spenders:
        assert one.stdout
        assert one.stdout.readline() == "ready\n"
    for one in spenders:
        assert one.stdin
        one.stdin.write("go\n")
        one.stdin.flush()
    for pages in range(20, calls * 2 // 5, calls // 12):
        processes.until(lambda pages=pages: _written(book) >= pages or _ended(spenders), 120)
        feed.client().flushall()
    said = [json.loads(one.communicate(timeout=240)[0]) for one in spenders]
    assert [one["errors"] for one in said] == [[]] * PROCESSES
    answers: Counter[str] = sum((Counter(one["answers"]) for one in said), Counter())
    assert answers.total() == calls
    spent = [int(tokens) for tokens in book.read_text().split()]
    assert answers["made"] == len(spent)
    row.refresh_from_db()
    assert (row.used.tokens, row.reserved.tokens) == (sum(spent), 0)
    assert cap - 100 < sum(spent) <= cap
    assert rows.counters(row).get("tokens", sum(spent)) >= sum(spent)
