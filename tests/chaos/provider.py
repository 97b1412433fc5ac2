"""A model provider that never lies and often fails: a process with books of its own.

It answers by what stands in the prompt alone, so a repeated request gets the same answer. What it
bills is in its book before the first byte goes out, and mostly the most that it may bill.
"""

from __future__ import annotations

import json
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chaos.books import Book
from tests.chaos.marks import Mark
from tests.messages_server import Answer, MessagesServer, Request, fails, says

MAX_TOKENS = 200
INPUT, CACHE_WRITE, OUTPUT = 2.0, 2.5, 10.0
"""Micro-dollars per token."""
FAULTS = {"429": 0.015, "529": 0.015, "hang": 0.012, "drip": 0.012, "cut": 0.015}
"""How it misbehaves, and how often."""
_CODE_ROUND = re.compile(r"# round (\d+)")
_WANTED = ("the header", "the empty input", "the overflow", "the locale", "the timeout", "the log")


class Provider(MessagesServer):
    """Counts what it works on at one moment by model, by project and altogether."""

    def __init__(self, seed: int, book: Path) -> None:
        super().__init__()
        self._seed = seed
        self._book = Book(book)
        self._busy: Counter[str] = Counter()
        self._asked: Counter[tuple[int, str]] = Counter()
        self._counting = threading.Lock()

    def next_answer(self, request: Request) -> Answer:
        """Work on it for a while, then answer or fail; the book first."""
        mark = Mark.find(json.dumps(request.body, ensure_ascii=False))
        model = request.body["model"]
        with self._counting:
            self._asked[mark.number, model] += 1
            times = self._asked[mark.number, model]
        dice = random.Random(f"{self._seed} {mark.number} {model} {times}")
        with self._working(f"profile:{model}", f"project:{mark.project}", "pool") as busy:
            time.sleep(dice.uniform(0.1, 0.6))
            kind = dice.choices(["", *FAULTS], [1 - sum(FAULTS.values()), *FAULTS.values()])[0]
            usage = {} if kind in ("429", "529") else _usage(request.body, dice)
            self._book.write(task=mark.number, model=model, kind=kind, busy=busy, **_billed(usage))
        return _misbehave(kind, usage) if kind else says(_text(model, request, mark), usage=usage)

    @contextmanager
    def _working(self, *scopes: str) -> Iterator[dict[str, int]]:
        with self._counting:
            self._busy.update(scopes)
            now = {scope: self._busy[scope] for scope in scopes}
        try:
            yield now
        finally:
            with self._counting:
                self._busy.subtract(scopes)


def _usage(body: dict[str, Any], dice: random.Random) -> dict[str, int]:
    """The most that the caller had to expect, in seven of ten cases; else a part of it."""
    sent = {key: value for key, value in body.items() if key != "stream"}
    most = len(json.dumps(sent, ensure_ascii=False).encode()) + 100
    most += 1_000 if "output_config" in body else 0
    part = 1.0 if dice.random() < 0.7 else dice.random()
    return {
        "input_tokens": 0,
        "cache_creation_input_tokens": int(most * part),
        "output_tokens": int(body["max_tokens"] * part),
    }


def _billed(usage: dict[str, int]) -> dict[str, int]:
    cached, said = usage.get("cache_creation_input_tokens", 0), usage.get("output_tokens", 0)
    tenths = cached * int(CACHE_WRITE * 10) + said * int(OUTPUT * 10)
    return {
        "tokens": cached + said,
        "cost_microusd": -(-tenths // 10),
        "model_calls": int(bool(usage)),
    }


def _misbehave(kind: str, usage: dict[str, int]) -> Answer:
    match kind:
        case "429":
            return fails(429, "rate_limit_error", headers={"retry-after": "1"})
        case "529":
            return fails(529, "overloaded_error")
        case "hang":
            return Answer(hang=True, usage=usage)
        case "drip":
            return says("so far", drip_seconds=0.1, usage=usage)
    return says("so far", cut=True, usage=usage)


def _text(model: str, request: Request, mark: Mark) -> str:
    prompt = json.dumps(request.body["messages"], ensure_ascii=False)
    rounds = [int(found) for found in _CODE_ROUND.findall(prompt)]
    match model.removeprefix("chaos-"):
        case "coder":
            number = max(rounds, default=0) + 1
            return f"```python\n# {mark}\n# round {number}\n```"
        case "reviewer":
            return _verdict(max(rounds), mark)
        case "planner":
            return _plan(mark)
        case "executor":
            return json.dumps({"parameters": {"task": mark.number, "amount": 12}})
        case "judge":
            found: dict[str, Any] = {"criterion": "the bank has the payment", "status": "met"}
            found |= {"evidenceIds": ["e1"], "correction": None}
            return json.dumps({"verdict": "accept", "findings": [found]})
    return f"done: {mark}"


def _verdict(number: int, mark: Mark) -> str:
    if number >= mark.rounds:
        return json.dumps({"verdict": "APPROVED", "reasons": []})
    reason = f"Handle {_WANTED[number % len(_WANTED)]}."
    return json.dumps({"verdict": "CHANGES_REQUESTED", "reasons": [reason]})


def _plan(mark: Mark) -> str:
    # An even number pays by the tool that a person must approve, an odd one by the other.
    tool, risk = ("pay", "high_impact") if mark.number % 2 == 0 else ("move", "reversible_write")
    step = {
        "id": "a",
        "objective": f"Pay for {mark}",
        "dependsOn": [],
        "tool": tool,
        "acceptanceCriteria": ["the bank has the payment"],
        "expectedEvidence": ["a receipt"],
        "risk": risk,
    }
    return json.dumps({"goal": str(mark), "assumptions": [], "steps": [step]})


def main(seed: str, book: str, address: str) -> None:
    """Serve until the process is ended; the address goes into a file once it listens."""
    with Provider(int(seed), Path(book)) as server:
        Path(f"{address}.new").write_text(server.url)
        Path(f"{address}.new").rename(address)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
