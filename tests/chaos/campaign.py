"""One chaos run: submit under faults, let it come to rest, judge."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from django.core.management import call_command

from dashboard.local.waiting import until
from tests.chaos import work
from tests.chaos.books import entries
from tests.chaos.faults import Faults
from tests.chaos.people import Account, Decider, Person, submit
from tests.chaos.provider import FAULTS as OF_THE_PROVIDER
from tests.chaos.rest import Api
from tests.chaos.stack import Stack
from tests.chaos.verdict import Line, Scene, billed_by_task, verdict
from tests.chaos.watch import Watch

OPEN_RUNS = 20
"""So many runs wait or work at once: more than there are slots, but no long queue."""
FAULT_SECONDS = 1.8
REST_SECONDS = 150.0
"""After the last fault everything must have come to rest by then."""
TWO_SWEEPS = 10.0
SAID_SECONDS = 30.0
_TICK_SECONDS = 0.05
_LAST = 0.95


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one chaos run came to."""

    lines: list[Line]
    faults: dict[str, int]
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether every claim is true."""
        return all(line.holds for line in self.lines)


class Campaign:
    """Everybody at work, and the main thread's part in it."""

    def __init__(self, stack: Stack, count: int, seed: int) -> None:
        repo = stack.folder / "repository"
        call_command("migrate", verbosity=0)
        tokens = work.prepare(stack.outside["provider"], repo)
        stack.start_product()
        self.stack = stack
        self.jobs = work.jobs(count, seed, repo)
        self.account, self.watch = Account(), Watch()
        self.faults = Faults(stack, self.watch, seed, FAULT_SECONDS)
        self._stop = threading.Event()
        self._sent = 0
        apis = {name: Api(stack.address, token, self._stop) for name, token in tokens.items()}
        submitting = partial(submit, self.jobs, apis, self.account, seed, self._wait)
        self.submitter = Person("submitter", submitting)
        self._people = [
            self.submitter,
            Person("watch", partial(self.watch.look, self._stop)),
            *(self._decider(name, api, seed) for name, api in apis.items()),
        ]

    def _decider(self, name: str, api: Api, seed: int) -> Person:
        decider = Decider(api, self.account, seed, self.stack.books["bank"])
        return Person(f"decider of {name}", partial(decider.work, self._stop))

    def _wait(self) -> None:
        """Before each submission: until there is room among the open runs."""
        until(lambda: self._sent - self.watch.ended < OPEN_RUNS, seconds=REST_SECONDS)
        self._sent += 1

    def step(self) -> None:
        """Raise what somebody has thrown, start again what has died."""
        for person in self._people:
            person.check()
        self.stack.keep()
        time.sleep(_TICK_SECONDS)

    @property
    def enough(self) -> bool:
        """Few runs are left, and every kind of fault has struck."""
        few = self.watch.ended >= len(self.jobs) * _LAST
        return self.submitter.done and few and self.faults.whole_deck_dealt

    @property
    def ended(self) -> bool:
        """Every run has ended."""
        return self.submitter.done and self.watch.ended >= len(self.jobs)

    def go_home(self) -> None:
        """Nobody asks for anything any more."""
        self._stop.set()
        until(lambda: all(person.done for person in self._people), seconds=30)


def run(stack: Stack, count: int, seed: int, say: Callable[[str], None]) -> Report:
    """Submit `count` tasks under faults and judge what became of them.

    1. Make the database ready, start the product.
    2. Submit, decide, look on and strike, all at the same time, until few runs are left.
    3. Stop striking; everything must come to rest.
    4. Compare the database with the books of those outside.
    """
    began = time.monotonic()
    campaign = Campaign(stack, count, seed)
    watch, faults = campaign.watch, campaign.faults
    said = time.monotonic()
    while not (campaign.enough or campaign.ended):
        campaign.step()
        if watch.ended:
            faults.tick()
        if time.monotonic() > said + SAID_SECONDS:
            said = time.monotonic()
            say(f"{watch.ended} of {count} ended, {sum(faults.counts.values())} faults")
    faults.end()
    say(f"{watch.ended} of {count} ended; no more faults")
    deadline = time.monotonic() + REST_SECONDS
    while not campaign.ended and time.monotonic() < deadline:
        campaign.step()
    until(lambda: not stack.strays(), seconds=TWO_SWEEPS)
    strays = stack.strays()
    campaign.go_home()
    scene = Scene(
        jobs=campaign.jobs, account=campaign.account, watch=watch, stack=stack, strays=strays
    )
    lines = [*verdict(scene), _invariants(scene)]
    seconds = time.monotonic() - began
    return Report(lines=lines, faults=_counted(stack, faults), seconds=seconds)


def _invariants(scene: Scene) -> Line:
    """The product's own check, which also runs in production, with the provider's books."""
    books = scene.stack.folder / "books.json"
    runs = scene.runs
    billed = {runs[number].pk: dict(axes) for number, axes in billed_by_task(scene).items()}
    books.write_text(json.dumps(billed))
    said = io.StringIO()
    with suppress(SystemExit):
        call_command("check_invariants", books=books, json=True, stdout=said)
    found = json.loads(said.getvalue())["violations"]
    return Line("invariants I1 to I11 broken", figure=len(found), wrong=[str(one) for one in found])


def _counted(stack: Stack, faults: Faults) -> dict[str, int]:
    kinds = [entry["kind"] for entry in entries(stack.books["provider"])]
    told = {f"provider: {kind}": kinds.count(kind) for kind in OF_THE_PROVIDER}
    return {**faults.counts, **told}
