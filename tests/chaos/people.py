"""Who uses the product: some submit, some decide at the gate, all of them at once.

Every submission and every answer stands in books of their own.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.books import entries
from tests.chaos.rest import Api
from tests.chaos.work import Job

log = logging.getLogger(__name__)

STALE = "0" * 64
MOST_ITEMS = 3
"""After so many items of one run it is closed, or this would never end."""
SURE_SECONDS = 12.0
"""How long a person waits before saying what became of a lost action: longer than any freeze."""
_TWICE = 0.1


@dataclass
class Account:
    """What people know: which task they got, and every answer to a decision."""

    tasks: dict[int, set[int]] = field(default_factory=dict)
    """Number of the job: the tasks that the API named for it."""
    decisions: list[tuple[int, bool, int]] = field(default_factory=list)
    """Item, whether its digest was the one shown, the status of the answer."""
    refused: list[str] = field(default_factory=list)
    """Submissions that were not taken."""


class Person:
    """A thread that works until told to stop."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            log.exception("%s gave up", self._thread.name)
            self._error = error

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raise what it has thrown."""
        if self._error is not None:
            raise self._error


def submit(
    todo: Iterable[Job], apis: dict[str, Api], account: Account, seed: int, wait: Callable[[], None]
) -> None:
    """Submit one after the other, `wait` before each; now and then the same twice at once."""
    dice = random.Random(f"submit {seed}")
    with ThreadPoolExecutor(2) as pool:
        for job in todo:
            wait()
            times = 2 if dice.random() < _TWICE else 1
            api, key = apis[job.project], f"chaos-{seed}-{job.number}"

            def send(job: Job = job, api: Api = api, key: str = key) -> tuple[int, dict[str, Any]]:
                return api.ask("tasks", job.body, key=key)

            for future in [pool.submit(send) for _ in range(times)]:
                status, answer = future.result()
                if status == 202:
                    account.tasks.setdefault(job.number, set()).add(answer["id"])
                else:
                    account.refused.append(f"job {job.number}: {status} {answer}")


class Decider:
    """Decides every item of one project, each of them twice at once and once on stale facts."""

    def __init__(self, api: Api, account: Account, seed: int, bank: Path) -> None:
        self._api = api
        self._account = account
        self._seed = seed
        self._bank = bank
        self._seen: dict[int, float] = {}
        self._items_of: dict[int, set[int]] = {}

    def work(self, stop: threading.Event) -> None:
        """Look and decide until `stop`."""
        with ThreadPoolExecutor(3) as pool:
            while not stop.wait(0.2):
                _, answer = self._api.ask("escalations?limit=50")
                for item in answer["data"]:
                    self._decide(item, pool)

    def _decide(self, item: dict[str, Any], pool: ThreadPoolExecutor) -> None:
        first = self._seen.setdefault(item["id"], time.monotonic())
        if "happened" in item["allowed"] and time.monotonic() < first + SURE_SECONDS:
            return
        self._items_of.setdefault(item["run"], set()).add(item["id"])
        body = {"guidance": "Go on with care.", "iterations": 1, **self._choice(item)}
        path = f"escalations/{item['id']}/decision"
        digests = [item["digest"], item["digest"], STALE]

        def say(digest: str) -> int:
            return self._api.ask(path, {**body, "digest": digest})[0]

        for digest, status in zip(digests, pool.map(say, digests), strict=True):
            self._account.decisions.append((item["id"], digest != STALE, status))

    def _choice(self, item: dict[str, Any]) -> dict[str, str]:
        allowed = item["allowed"]
        if "happened" in allowed:
            paid = any(entry["task"] == self._number(item) for entry in entries(self._bank))
            return {"decision": "happened" if paid else "not_happened"}
        if "approve" in allowed:
            return {"decision": "approve"}
        dice = random.Random(f"{self._seed} {self._number(item)} {item['cause']}")
        last = len(self._items_of[item["run"]]) >= MOST_ITEMS
        if "continue" in allowed and not last and dice.random() < 0.6:
            return {"decision": "continue"}
        return {"decision": "accept" if "accept" in allowed else "close"}

    def _number(self, item: dict[str, Any]) -> int:
        return int(item["title"].split()[1])
