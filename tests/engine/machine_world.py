"""The world around the product in the state machine: clock, broker, provider, people."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, models, transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from loops import feed, gates, invariants
from loops.core.lifecycle import TERMINAL
from loops.models import (
    AgentProfile,
    Attempt,
    Escalation,
    Event,
    LimitGrant,
    Outbox,
    Reservation,
    Run,
    Step,
    Task,
)
from tests.engine import booked_agent, faults, rows, scenes
from tests.engine.booked_agent import provider
from workers import agents, dispatch, sweeper
from workers.app import app
from workers.intake import TaskRequest, accept
from workers.iteration import run_iteration
from workers.lease import heart

CALL_TOKENS, CALL_COST = 100, 1_000
PROJECT_CAP = 2
_CLEARED = (
    LimitGrant, Attempt, Step, Reservation, Escalation, Event, Outbox, Run, Task, AgentProfile,
)  # fmt: skip
_AGED = (Run, Attempt, Reservation, Escalation, Outbox)
_LONGEST_UNSWEPT = 90


class World:
    """What one example has made so far."""

    def __init__(self, folder: Path) -> None:
        self.broker: list[tuple[int, int]] = []
        self.runs: dict[str, int] = {}
        self.cancelled: set[int] = set()
        self.held: list[faults.Held] = []
        self.wrong: list[str] = []
        self.user = User.objects.get_or_create(username="ann")[0]
        self.project = scenes.project("machine", max_running=PROJECT_CAP)
        self._marker = folder / "marker"
        self._unswept = 0
        provider.script.clear()
        provider.books.clear()
        provider.on_call = self._called
        feed.client().flushall()

    def close(self) -> None:
        """Let every thread end and leave empty tables."""
        while self.held:
            self.held.pop().finish()
        with transaction.atomic():
            for table in _CLEARED:
                table._default_manager.all()._raw_delete(table._default_manager.db)  # type: ignore[attr-defined]

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
        self.runs[name] = accept(request, project=self.project, user=self.user).runs.get().pk

    def work(self, message: tuple[int, int]) -> None:
        """What a worker does with a message. It claims exactly what it may claim."""
        may, before = self._may_claim(message), self._token(message[0])
        try:
            run_iteration(*message, worker=threading.current_thread().name)
        finally:
            claimed = self._token(message[0]) - before
            if may is not None and claimed != may:
                self.wrong.append(f"message {message}: {claimed} claims instead of {may:d}")

    def work_whole(self, message: tuple[int, int]) -> None:
        """The same without any fault: nothing may stay reserved under its token."""
        before = self._token(message[0])
        self.work(message)
        left = Reservation.objects.filter(
            run_id=message[0], token__gt=before, state__in=["reserved", "in_flight"]
        ).count()
        if left:
            self.wrong.append(f"message {message} left {left} reservations open")

    def _may_claim(self, message: tuple[int, int]) -> bool | None:
        """None: too close to a moment at which the answer changes."""
        run = Run.objects.filter(pk=message[0]).annotate(now=Now()).first()
        if run is None:
            return False
        moments = [run.next_at, *([run.deadline_at] if run.deadline_at else [])]
        if any(abs((moment - run.now).total_seconds()) < 5 for moment in moments[1:]):
            return None
        return bool(
            (run.status, run.attempt_no) == ("queued", message[1])
            and run.admitted_at
            and not run.cancel_requested
            and run.next_at <= run.now
            and (run.deadline_at is None or run.deadline_at > run.now)
        )

    def _token(self, run_id: int) -> int:
        found = Run.objects.filter(pk=run_id).values_list("lease_token", flat=True).first()
        return found or 0

    def hold(self, message: tuple[int, int] | None, point: str) -> None:
        """Begin work, or a dispatch, in a thread that is held at the point."""
        act = (lambda: self.work(message)) if message else dispatch.run_pass
        held = faults.Held(act, point, self._marker)
        if held.start():
            self.held.append(held)
        else:
            held.finish()

    def crash(self, act: Any, point: str) -> None:
        """Do it with a crash on the way."""
        faults.crash_at(act, point, self._marker)

    def beat(self) -> None:
        """The heart of the held workers beats: it keeps what is theirs, and nothing else."""
        for lease in list(heart._leases):
            claim, was_lost = lease.claim, lease.lost.is_set()
            mine = self._holds(claim.run_id, claim.token)
            lease.beat()
            if not was_lost and lease.lost.is_set() == mine:
                self.wrong.append(f"the heart of {claim} kept {mine}, lost {lease.lost.is_set()}")

    def _holds(self, run_id: int, token: int) -> bool:
        return Run.objects.filter(
            Q(deadline_at__isnull=True) | Q(deadline_at__gt=Now()),
            pk=run_id,
            status="running",
            lease_token=token,
            lease_expires_at__gt=Now(),
            attempt_deadline_at__gt=Now(),
            cancel_requested=False,
        ).exists()

    def _called(self, cancelled: threading.Event) -> None:
        """A request arrived: whoever sent it must hold the lease at this moment."""
        lease = next(lease for lease in heart._leases if lease.lost is cancelled)
        claim = lease.claim
        if not Run.objects.filter(
            pk=claim.run_id, lease_token=claim.token, lease_expires_at__gt=Now()
        ).exists():
            self.wrong.append(f"{claim} sent a request without its lease")
        faults.pass_point("call")

    def pass_time(self, seconds: int) -> None:
        """Everything stored, and every slot, gets so much older. Sweeps are never far apart."""
        while seconds > 0:
            part = min(seconds, _LONGEST_UNSWEPT)
            if self._unswept + part > _LONGEST_UNSWEPT:
                self.tend()
            self._unswept += part
            seconds -= part
            _age(part)

    def tend(self) -> None:
        """A sweep and a dispatch, after which nothing is left to mend."""
        sweeper.run_pass()
        self._unswept = 0
        dispatch.run_pass()
        self.wrong += self._after_a_sweep()

    def _after_a_sweep(self) -> list[str]:
        # A dispatcher that died holds its slot until that runs out: nobody waits without a reason.
        found = [one for one in invariants.check() if not one.found.startswith("waits since")]
        return [str(one) for one in found]

    def cancel(self, run_id: int) -> None:
        """A person stops a run."""
        if gates.cancel(Run.objects.get(pk=run_id), actor="ann"):
            self.cancelled.add(run_id)

    def decide(self, item: Escalation, decision: str, *, stale: bool) -> None:
        """A person decides, perhaps what was decided before, or on what has changed since."""
        fresh = item.status == "open" and not stale
        digest = "0" * 64 if stale else item.digest
        done = True
        try:
            gates.decide(
                item.pk,
                decision=decision,
                digest=digest,
                user=self.user,
                guidance="go",
                iterations=1,
            )
        except (gates.NotPossibleNow, gates.BadDecision):
            done = False
        if done and not fresh:
            self.wrong.append(f"{decision} was taken on {item.status} {item}, stale: {stale}")

    def broken(self) -> list[str]:
        """Everything that does not hold now."""
        books = {self.runs[name]: page for name, page in provider.books.items()}
        found = [*invariants.check(swept=False), *invariants.check_books(books)]
        return [*self.wrong, *map(str, found), *self._above_cap(), *self._counters_below()]

    def _above_cap(self) -> Iterator[str]:
        """Admitted for work, and at work: a crash ends work, whatever the row says still."""
        admitted = Run.objects.filter(status="queued", admitted_at__isnull=False).count()
        working = sum(self._holds(one.claim.run_id, one.claim.token) for one in heart._leases)
        if admitted + working > PROJECT_CAP:
            yield f"{admitted} admitted and {working} working, of {PROJECT_CAP} slots"

    def _counters_below(self) -> Iterator[str]:
        """The fast wall never stands below what the ledger says is surely or maybe spent."""
        for run in Run.objects.all():
            counters = rows.counters(run)
            sent = Reservation.objects.filter(run=run, state="in_flight").aggregate(
                tokens=models.Sum("est_tokens", default=0)
            )
            if counters and counters["tokens"] < run.used.tokens + sent["tokens"]:
                yield f"the counters of run {run.pk} are below its ledger: {counters}"

    def come_to_rest(self) -> None:
        """Let everything that waits go on, until every run has ended or waits for a person."""
        while self.held:
            self.held.pop().finish()
        provider.script.clear()
        for _ in range(60):
            self.tend()
            _age(_LONGEST_UNSWEPT)
            while self.broker:
                self.work_whole(self.broker.pop(0))
            waiting = Run.objects.exclude(status__in=[*TERMINAL, "at_gate"])
            if not waiting.exists():
                break
        else:
            self.wrong.append(f"these never come to rest: {list(waiting.values('pk', 'status'))}")
        for run in Run.objects.filter(pk__in=self.cancelled):
            if (run.status, run.stop_reason) not in (
                ("cancelled", "cancelled_by_person"), ("budget_exhausted", "deadline"),
            ):  # fmt: skip
                self.wrong.append(f"run {run.pk} was cancelled and is {run.status}")
        self.wrong += self._after_a_sweep()


def _age(seconds: int) -> None:
    with transaction.atomic():
        for table in _AGED:
            columns = [c.name for c in table._meta.fields if isinstance(c, models.DateTimeField)]
            table._default_manager.update(
                **{name: F(name) - timedelta(seconds=seconds) for name in columns}
            )
    for key in feed.client().scan_iter("loopwarden:slots:*", _type="zset"):
        for member, _ in feed.client().zscan_iter(key):
            feed.client().zincrby(key, -seconds, member)


@contextmanager
def outside(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[None]:
    """Replace what is outside of the product: the broker's transport and the provider."""
    settings.LOOPWARDEN_SANDBOX = "none"
    settings.CURRENT_WORLD = None
    monkeypatch.setattr(agents, "NAMES", (*agents.NAMES, booked_agent.NAME))
    monkeypatch.setitem(sys.modules, f"workers.agents.{booked_agent.NAME}", booked_agent)

    def send_task(_name: str, args: list[int], **_options: Any) -> None:
        settings.CURRENT_WORLD.broker.append((args[0], args[1]))

    monkeypatch.setattr(app, "send_task", send_task)
    faults.install(monkeypatch)
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode=WAL")
    yield
