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
from tests.engine.spender import CALLS, THREADS

pytestmark = pytest.mark.django_db(transaction=True)

CAP, PROCESSES = 40_000, 3


def _claims(count: int, graph: Graph | None = None) -> list[attempts.Claim]:
    found = []
    for _ in range(count):
        run, claim = rows.claimed()
        rows.change(run, graph=graph, lease_expires_at=Now() + 720 * rows.AGO)
        found.append(claim)
    return found


def _scene(scope: str) -> tuple[Budget, list[attempts.Claim]]:
    match scope:
        case "run":
            claims = _claims(1)
            rows.change(Run.objects.get(), limit_tokens=CAP)
            return Run.objects.get(), claims
        case "graph":
            graph = Graph.objects.create(
                project=scenes.project(), title="g", aim="g", limit_tokens=CAP
            )
            return graph, _claims(6, graph)
    return days.configure(scenes.project(), daily_tokens=CAP), _claims(6)


def _spender(*told: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.engine.spender", *told],
        cwd=processes.ROOT,
        env=processes.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("scope", ["run", "graph", "day"])
def test_a_thousand_calls_of_several_processes_stay_below_the_cap(
    scope: str, tmp_path: Path
) -> None:
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode=WAL")
    row, claims = _scene(scope)
    book = tmp_path / "book"
    book.touch()
    told = json.dumps([asdict(claim) for claim in claims])
    spenders = [_spender(told, str(book), str(THREADS * number)) for number in range(PROCESSES)]
    for one in spenders:
        assert one.stdout
        assert one.stdout.readline() == "ready\n"
    for one in spenders:
        assert one.stdin
        one.stdin.write("go\n")
        one.stdin.flush()
    for pages in (20, 80, 160, 240, 320, 400):
        processes.until(lambda pages=pages: len(book.read_text().split()) >= pages, 120)
        feed.client().flushall()
    said = [json.loads(one.communicate(timeout=240)[0]) for one in spenders]
    assert [one["errors"] for one in said] == [[]] * PROCESSES
    answers: Counter[str] = sum((Counter(one["answers"]) for one in said), Counter())
    assert answers.total() == PROCESSES * THREADS * CALLS >= 1_000
    spent = [int(tokens) for tokens in book.read_text().split()]
    assert answers["made"] == len(spent)
    row.refresh_from_db()
    assert (row.used.tokens, row.reserved.tokens) == (sum(spent), 0)
    assert CAP - 100 < sum(spent) <= CAP
    assert rows.counters(row).get("tokens", sum(spent)) >= sum(spent)
