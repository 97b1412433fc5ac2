"""A process that spends: threads that make model calls through the recorder, as workers do.

What it pays is written into a book before the system hears of it, as a provider's would be.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

THREADS = 6


def spend(claims: list[dict[str, Any]], book: Path, number: int, calls: int) -> Counter[str]:
    """Calls of one thread, each of 100 tokens at most, and how they were answered."""
    from loops.core.errors import LimitReached
    from loops.core.limits import Amount
    from loops.store import attempts, ledger
    from workers.lease import Lease
    from workers.recorder import CountersAway, Performed, Recorder

    chance, answers = random.Random(number), Counter[str]()  # noqa: S311
    claim = attempts.Claim(**claims[number % len(claims)])
    recorder = Recorder(Lease(claim, []), replayable=lambda _: True)
    recorder._seq = 1_000 * number
    facts = {"kind": "model_call", "role": "coder", "name": "agent", "digest": "d"}
    for _ in range(calls):
        tokens = chance.choice([100, 100, 60])

        def act(tokens: int = tokens) -> Performed:
            with book.open("a") as pages:
                pages.write(f"{tokens}\n")
            return Performed(result={}, usage=Amount(model_calls=1, tokens=tokens))

        try:
            recorder.step(**facts, worst=Amount(model_calls=1, tokens=100), act=act)
            answers["made"] += 1
        except (LimitReached, ledger.DayUsedUp):
            answers["refused"] += 1
        except CountersAway:
            answers["sent back"] += 1
    return answers


def main() -> None:
    """Wait for a line, spend in all threads at once, print how the calls were answered."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()
    from tests.engine import rows

    claims, book = json.loads(sys.argv[1]), Path(sys.argv[2])
    first, calls = int(sys.argv[3]), int(sys.argv[4])
    print("ready", flush=True)
    sys.stdin.readline()
    found = rows.together(THREADS, lambda n: spend(claims, book, first + n, calls))
    errors = [repr(one) for one in found if isinstance(one, Exception)]
    total = sum((one for one in found if isinstance(one, Counter)), Counter[str]())
    print(json.dumps({"answers": total, "errors": errors}), flush=True)


if __name__ == "__main__":
    main()
