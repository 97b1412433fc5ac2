"""The world around the product in the state machine: clock, broker, provider, people."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import connection, connections, models, transaction

from loops import feed, gates, invariants
from loops.models import AgentProfile, Escalation, Project, Run
from loops.store import attempts, days, holds
from loops.store.holds import Request, Target
from tests.engine import booked_agent, faults, scenes
from tests.engine import machine_look as look
from tests.engine.booked_agent import provider
from workers import agents, budgets, dispatch, iteration, recorder, stopping, sweeper
from workers import lease as workers_lease
from workers.app import app
from workers.intake import TaskRequest, accept
from workers.iteration import run_iteration
from workers.lease import Lease, heart

CALL_TOKENS, CALL_COST = 100, 1_000
PROJECT_CAP = 2
_AGED = ("run", "attempt", "reservation", "escalation", "outbox")
_LONGEST_UNSWEPT = 90
_LATE_SECONDS = 20
"""A moment that is nearer than this may pass while the test looks."""
_EARLIER = {
    "sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', {0}, '-' || %(s)s || ' seconds')",
    "postgresql": "{0} - %(s)s * interval '1 second'",
}
_CLAIMS = "SELECT COUNT(*) FROM loops_event WHERE kind = 'claimed' AND actor = %(worker)s"
_ENDS = """SELECT COUNT(*) FROM loops_event
  WHERE kind IN ('judged', 'finished') AND actor = %(worker)s"""
_AGE_SLOTS = """
for _, key in ipairs(redis.call("KEYS", "loopwarden:slots:*")) do
  if redis.call("TYPE", key).ok == "zset" then
    for _, member in ipairs(redis.call("ZRANGE", key, 0, -1)) do
      redis.call("ZINCRBY", key, -ARGV[1], member)
    end
  else
    redis.call("EXPIRE", key, redis.call("TTL", key) - ARGV[1])
  end
end
"""


class World:
    """What one example has made so far."""

    def __init__(self, folder: Path) -> None:
        self.broker: list[tuple[int, int]] = []
        self.runs: list[int] = []
        self.cancelled: set[int] = set()
        self.held: list[faults.Held] = []
        self.holds: list[Target] = []
        self.wrong: list[str] = []
        self.user = User.objects.get_or_create(username="ann")[0]
        self.project = scenes.project("machine", max_running=PROJECT_CAP, time_zone=_far_zone())
        self.capped = False
        self.aged = 0
        self._marker = folder / "marker"
        self._unswept = 0
        self.workers = 0
        self._begun: set[str] = set()
        self._sent_before: set[int] | None = None
        provider.script.clear()
        provider.books.clear()
        provider.on_call = self._called
        feed.client().flushall()

    def close(self) -> None:
        """Let every thread end and leave empty tables."""
        while self.held:
            self.held.pop().finish()
        days.configure(self.project, daily_tokens=None)
        with transaction.atomic(), connection.cursor() as cursor:
            for table in _emptied():
                cursor.execute(f'DELETE FROM "{table}"')  # noqa: S608 - names of our own tables

    def submit(self, pattern: str, limits: dict[str, int | None], on_limit: str) -> None:
        """One task with an agent, and a page in the provider's books, of its own."""
        name = f"agent-{len(self.runs)}"
        config = {"book": name, "tokens": CALL_TOKENS, "cost_microusd": CALL_COST}
        AgentProfile.objects.create(name=name, provider=booked_agent.NAME, config=config)
        roles = ["worker"] if pattern == "one_pass" else ["coder", "reviewer"]
        what = {"prompt": "Do it."} if pattern == "one_pass" else {"task": "Write it."}
        request = TaskRequest(
            pattern=pattern, title=name, spec=what, limits=limits, on_limit=on_limit,
            agents=dict.fromkeys(roles, name),
        )  # fmt: skip
        accept(request, project=self.project, user=self.user)
        self.runs = [run.id for run in look.runs()]

    def _run(self, run_id: int) -> look.Seen | None:
        return next((run for run in look.runs() if run.id == run_id), None)

    def work(self, message: tuple[int, int], *, in_time: bool = True) -> None:
        """What a worker does with a message. It claims what it may claim, if it comes `in_time`."""
        self.workers += 1
        worker, before = f"worker-{self.workers}", self._run(message[0])
        least = may = bool(before and before.claimable and before.no == message[1])
        try:
            run_iteration(*message, worker=worker)
        except faults.Crash:
            least = False
            raise
        finally:
            claims = look.rows(_CLAIMS, {"worker": worker})[0][0]
            late = not in_time or (before and _soon(before.seconds_left))
            if claims > 1 or (not late and not least <= claims <= may):
                self.wrong.append(f"{worker} with {message}: {claims} claims, not {may:d}")

    def work_whole(self, message: tuple[int, int]) -> None:
        """The same without any fault: nothing may stay reserved under its token."""
        before = self._run(message[0])
        self.work(message)
        if before and look.rows(
            "SELECT 1 FROM loops_reservation WHERE run_id = %(run)s AND token > %(token)s"
            " AND state IN ('reserved', 'in_flight')",
            {"run": before.id, "token": before.token},
        ):
            self.wrong.append(f"message {message} left a reservation open")

    def hold(self, act: Callable[[], Any], point: str) -> None:
        """Begin in a thread that is held at the point."""
        held = faults.Held(act, point, self._marker)
        if held.start():
            self.held.append(held)
        else:
            held.finish()

    def go_on(self, at: int) -> None:
        """Let a held thread go on. Without its lease it does not end an attempt any more."""
        held = self.held.pop(at % len(self.held))
        live = {(run.id, run.token) for run in look.runs() if run.live}
        late = [
            lease.claim.worker
            for lease in _leases()
            if (lease.claim.run_id, lease.claim.token) not in live
        ]
        before = [look.rows(_ENDS, {"worker": worker}) for worker in late]
        held.finish()
        if before != [look.rows(_ENDS, {"worker": worker}) for worker in late]:
            self.wrong.append(f"one of {late} ended an attempt that was not its own any more")

    def crash(self, act: Callable[[], Any], point: str) -> None:
        """Do it with a crash on the way."""
        faults.crash_at(act, point, self._marker)

    def beat(self) -> None:
        """The heart of the held workers beats: it keeps what is theirs, and nothing else."""
        live = {(run.id, run.token) for run in look.runs() if run.live}
        stopped = holds.is_stopped()
        for lease in _leases():
            was_lost = lease.lost.is_set()
            mine = (lease.claim.run_id, lease.claim.token) in live and not stopped
            lease.beat()
            if not was_lost and lease.lost.is_set() == mine:
                self.wrong.append(f"the heart of {lease.claim} kept a lease: {not mine}")

    def begun(self, member: str) -> None:
        """Somebody took these slots; the names of attempts are not those of admissions."""
        self._begun.add(member)

    def _called(self, cancelled: threading.Event) -> None:
        """A request arrived: whoever sent it must hold the lease at this moment."""
        claim = next(lease for lease in _leases() if lease.lost is cancelled).claim
        run = self._run(claim.run_id)
        if run is None or not run.leased or run.token != claim.token:
            self.wrong.append(f"{claim} sent a request without its lease")
        self.wrong += look.broken_budgets(look.runs())
        sent = _in_flight(claim.run_id)
        if self._sent_before is not None and not sent <= self._sent_before:
            self.wrong.append(f"{claim} sent a request although everything is stopped")
        faults.pass_point("call")

    def pause(self, kind: str, run_id: int) -> None:
        """A person holds a run, the project or everything, or turns the kill switch."""
        target = {
            "run": Target(run=Run.objects.get(pk=run_id)),
            "project": Target(project=self.project),
            "all": Target(),
            "switch": Target(switch=True),
        }[kind]
        try:
            stopping.pause(target, Request(actor="ann"))
        except holds.AlreadyEnded:
            return
        self.holds.append(target)
        if target.switch:
            self._sent_before = _in_flight()

    def resume_all(self) -> None:
        """A person lets everything go on that is held."""
        while self.holds:
            stopping.resume(self.holds.pop(), Request(actor="ann"))
        self._sent_before = None

    def cap_day(self, tokens: int | None) -> None:
        """A person caps what the project may spend in a day, or takes the cap away."""
        days.configure(self.project, daily_tokens=tokens)
        self.capped = tokens is not None

    def pass_time(self, seconds: int) -> None:
        """Everything stored, and every slot, gets so much older. Sweeps are never far apart."""
        while seconds > 0:
            part = min(seconds, _LONGEST_UNSWEPT)
            if self._unswept + part > _LONGEST_UNSWEPT:
                self.tend()
            self._unswept += part
            seconds -= part
            self._age(part)

    def _age(self, seconds: int) -> None:
        self.aged += seconds
        _age(seconds)

    def tend(self) -> None:
        """A sweep and a dispatch, after which nothing is left to mend."""
        sweeper.run_pass()
        self._unswept = 0
        dispatch.run_pass()
        # A dispatcher that died holds its slot until that runs out: nobody waits without a reason.
        found = [one for one in invariants.check() if not one.found.startswith("waits since")]
        self.wrong += map(str, found)

    def cancel(self, run_id: int) -> None:
        """A person stops a run."""
        if gates.cancel(Run.objects.get(pk=run_id), actor="ann"):
            self.cancelled.add(run_id)

    def decide(self, item: Escalation, decision: str, *, stale: bool) -> None:
        """A person decides, perhaps what was decided before, or on what has changed since."""
        fresh = item.status == "open" and not stale
        digest = "0" * 64 if stale else item.digest
        facts: dict[str, Any] = {"user": self.user, "guidance": "go", "iterations": 1}
        try:
            gates.decide(item.pk, decision=decision, digest=digest, **facts)
        except (gates.NotPossibleNow, gates.BadDecision):
            return
        if not fresh:
            self.wrong.append(f"{decision} was taken on {item.status} {item}, stale: {stale}")

    def broken(self, *, rows: bool) -> list[str]:
        """Everything that does not hold now; `rows` looks at the stored rows as well."""
        seen = look.runs()
        found = [*self.wrong, *self._above_cap(seen), *look.broken_budgets(seen)]
        for run in seen:
            billed = provider.books.get(run.name, {})
            found += [
                f"run {run.id} was billed {amount} {axis} and charges {getattr(run, axis)}"
                for axis, amount in billed.items()
                if amount > getattr(run, axis)
            ]
        return [*found, *(look.broken_rows() if rows else ())]

    def _above_cap(self, seen: list[look.Seen]) -> Iterator[str]:
        """An attempt that began is at work until it or its lease ends, whoever was admitted."""
        live = {(run.id, run.token) for run in seen if run.live}
        working = [
            lease.holder
            for lease in _leases()
            if lease.holder in self._begun and (lease.claim.run_id, lease.claim.token) in live
        ]
        if len(working) > PROJECT_CAP:
            yield f"{working} work, but there are {PROJECT_CAP} slots"

    def come_to_rest(self) -> None:
        """Let everything that waits go on, until every run has ended or waits for a person."""
        while self.held:
            self.held.pop().finish()
        self.resume_all()
        if self.capped:
            self.cap_day(None)
        provider.script.clear()
        for _ in range(60):
            self.tend()
            self._age(_LONGEST_UNSWEPT)
            while self.broker:
                self.work_whole(self.broker.pop(0))
            seen = look.runs()
            if all(run.at_rest for run in seen):
                break
        else:
            self.wrong.append(f"these never come to rest: {[r for r in seen if not r.at_rest]}")
        self.tend()
        for run in look.runs():
            ends = (("cancelled", "cancelled_by_person"), ("budget_exhausted", "deadline"))
            if run.id in self.cancelled and (run.status, run.stop_reason) not in ends:
                self.wrong.append(f"run {run.id} was cancelled and is {run.status}")


def _soon(seconds: float | None) -> bool:
    return seconds is not None and abs(seconds) < _LATE_SECONDS


def _leases() -> list[Lease]:
    return list(heart._leases)


def _in_flight(run_id: int | None = None) -> set[int]:
    of = "" if run_id is None else " AND run_id = %(run)s"
    sql = f"SELECT id FROM loops_reservation WHERE state = 'in_flight'{of}"  # noqa: S608 - two constants
    return {row[0] for row in look.rows(sql, {"run": run_id})}


def _far_zone() -> str:
    """A time zone in which it is about noon, so that no example sees a midnight."""
    hour = datetime.now(UTC).hour
    return f"Etc/GMT{hour - 12:+d}"


def _emptied() -> list[str]:
    """All tables of the product but the project's, those first that refer to others."""
    left = [m for m in apps.get_app_config("loops").get_models() if m is not Project]
    ordered: list[str] = []
    while left:
        fields = [field for model in left for field in model._meta.fields]
        referred = {f.related_model for f in fields if f.related_model is not f.model}
        free = [model for model in left if model not in referred]
        ordered += [model._meta.db_table for model in free]
        left = [model for model in left if model in referred]
    return ordered


def _age(seconds: int) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        for name in _AGED:
            meta = apps.get_model("loops", name)._meta
            earlier = _EARLIER[connection.vendor]
            columns = [c.name for c in meta.fields if isinstance(c, models.DateTimeField)]
            facts = ", ".join(f"{column} = {earlier.format(column)}" for column in columns)
            cursor.execute(f"UPDATE {meta.db_table} SET {facts}", {"s": seconds})  # noqa: S608 - names of our own columns
    feed.client().eval(_AGE_SLOTS, 0, str(seconds))


@contextmanager
def outside(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[None]:
    """Replace what is outside of the product: the broker's transport, the provider, the time."""
    settings.LOOPWARDEN_SANDBOX = "none"
    settings.CURRENT_WORLD = None
    monkeypatch.setattr(agents, "NAMES", (*agents.NAMES, booked_agent.NAME))
    monkeypatch.setitem(sys.modules, f"workers.agents.{booked_agent.NAME}", booked_agent)

    def send_task(_name: str, args: list[int], **_options: Any) -> None:
        settings.CURRENT_WORLD.broker.append((args[0], args[1]))

    monkeypatch.setattr(app, "send_task", send_task)

    def begun(member: str) -> None:
        settings.CURRENT_WORLD.begun(member)

    faults.install(monkeypatch, begun)
    _stop_the_clocks(monkeypatch, lambda: settings.CURRENT_WORLD.aged)
    # The connection of this thread stays open: to open one costs more than a step.
    monkeypatch.setattr(connections["default"], "close", lambda: None)
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode=WAL")
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _stop_the_clocks(monkeypatch: pytest.MonkeyPatch, aged: Callable[[], int]) -> None:
    """Nothing beats by itself, and whoever waits for a rebuild waits until its time is over.

    The clocks of the workers are `aged` as the rows are.
    """

    def sleep(_seconds: float) -> None:
        for key in feed.client().scan_iter("loopwarden:budget:*:nonce"):
            feed.client().delete(key)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + aged())
    for module in (attempts, workers_lease, iteration):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(heart, "_thread", threading.main_thread())
    monkeypatch.setattr(budgets, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(recorder, "time", SimpleNamespace(sleep=lambda _seconds: None))
