"""One chaos run: submit under faults, let it come to rest, judge."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

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
FAULT_SECONDS = 1.6
REST_SECONDS = 150.0
"""After the last fault everything must have come to rest by then."""
TWO_SWEEPS = 10.0
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


def run(stack: Stack, count: int, seed: int, say: Callable[[str], None]) -> Report:
    """Submit `count` tasks under faults and judge what became of them.

    1. Make the database ready, start the product.
    2. Submit, decide, look on and strike, all at the same time, until few runs are left.
    3. Stop striking; everything must come to rest.
    4. Compare the database with the books of those outside.
    """
    began = time.monotonic()
    repo = stack.folder / "repository"
    call_command("migrate", verbosity=0)
    tokens = work.prepare(stack.outside["provider"], repo)
    stack.start_product()
    account, watch, stop = Account(), Watch(), threading.Event()
    apis = {project: Api(stack.address, token, stop) for project, token in tokens.items()}
    todo = work.jobs(count, seed, repo)
    faults = Faults(stack, watch, seed, FAULT_SECONDS)
    sent = 0

    def wait() -> None:
        nonlocal sent
        until(lambda: sent - watch.ended < OPEN_RUNS, seconds=REST_SECONDS)
        sent += 1

    submitter = Person("submitter", lambda: submit(todo, apis, account, seed, wait))
    people = [submitter, Person("watch", lambda: watch.look(stop))]
    for project, api in apis.items():
        decider = Decider(api, account, seed, stack.books["bank"])
        people.append(Person(f"decider-{project}", lambda d=decider: d.work(stop)))

    def step() -> None:
        for person in people:
            person.done  # noqa: B018 - raises what the person has thrown
        stack.keep()
        time.sleep(_TICK_SECONDS)

    said = time.monotonic()
    while not (submitter.done and watch.ended >= count * _LAST and faults.whole_deck_dealt):
        step()
        if watch.ended:
            faults.tick()
        if time.monotonic() > said + 15:
            said = time.monotonic()
            say(f"{watch.ended} of {count} ended, {sum(faults.counts.values())} faults")
        if watch.ended >= count:
            break
    faults.end()
    say(f"{watch.ended} of {count} ended; no more faults")
    deadline = time.monotonic() + REST_SECONDS
    while watch.ended < count and time.monotonic() < deadline:
        step()
    until(lambda: not stack.strays(), seconds=TWO_SWEEPS)
    strays = stack.strays()
    stop.set()
    until(lambda: all(person.done for person in people), seconds=30)
    scene = Scene(jobs=todo, account=account, watch=watch, stack=stack, strays=strays)
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
