"""What must be true at the end: the database against the books of those outside."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from django.db.models import Count, Q, Sum

from loops.core.lifecycle import TERMINAL, RunStatus
from loops.models import (
    Artifact,
    Attempt,
    AttemptStatus,
    Escalation,
    EscalationStatus,
    Event,
    Reservation,
    ReservationState,
    Run,
    Step,
    StepKind,
)
from loops.store import artifacts
from tests.chaos.books import entries
from tests.chaos.people import Account
from tests.chaos.stack import LEASE_SECONDS, POOL_SLOTS, Stack
from tests.chaos.watch import Victim, Watch
from tests.chaos.work import LINES, PROFILES, PROJECTS, Job
from workers.control import ControlRepo

RECOVERY_SECONDS = LEASE_SECONDS + 15
AXES = ("model_calls", "tokens", "cost_microusd")
_DECIDED = ("continued", "refactored", "accepted", "closed", "answered", "governed")
_OPEN = (ReservationState.RESERVED, ReservationState.IN_FLIGHT)


@dataclass
class Line:
    """One line of the table: a figure that has a bound, and what is wrong where it breaks it."""

    name: str
    figure: float = 0
    most: float = 0
    unit: str = ""
    wrong: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    """What lies above the bound and is allowed for, such as the last hundredth."""

    @property
    def holds(self) -> bool:
        """Whether the claim is true."""
        return self.figure <= self.most and not self.wrong


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Everything that is known at the end."""

    jobs: list[Job]
    account: Account
    watch: Watch
    stack: Stack
    strays: list[int]

    @property
    def runs(self) -> dict[int, Run]:
        """By the number of the job."""
        found = Run.objects.select_related("task").order_by("id")
        return {int(run.task.title.split()[1]): run for run in found}


def verdict(scene: Scene) -> list[Line]:
    """The table, in the order in which it is printed."""
    runs = scene.runs
    return [
        _counted("lost", _lost(scene, runs)),
        _counted("double-applied", _applied_twice(scene, runs)),
        _counted("wrong attempts", _wrong_attempts(scene, runs)),
        _overshoot(scene, runs),
        _counted("ledger against rows", _ledger(runs.values())),
        _counted("gates consumed twice", _gates(scene)),
        _counted("orphan processes", (f"process {pid}" for pid in scene.strays)),
        _counted("damaged artifacts", _damaged()),
        *_concurrency(scene),
        _recovery(scene.watch.victims),
    ]


def _counted(name: str, wrong: Iterable[str]) -> Line:
    found = list(wrong)
    return Line(name, figure=len(found), wrong=found)


def _lost(scene: Scene, runs: dict[int, Run]) -> Iterator[str]:
    yield from scene.account.refused
    for job in scene.jobs:
        tasks = scene.account.tasks.get(job.number, set())
        run = runs.get(job.number)
        if run is None or tasks != {run.task_id}:
            yield f"job {job.number}: the API said {tasks}, stored is {run and run.task_id}"
        elif RunStatus(run.status) not in TERMINAL:
            yield f"job {job.number}: run {run.pk} is {run.status}"
    extra = Run.objects.count() - len(runs)
    yield from [f"{extra} runs more than were submitted"] if extra else []


def _applied_twice(scene: Scene, runs: dict[int, Run]) -> Iterator[str]:
    payments = entries(scene.stack.books["bank"])
    for name in ("key", "task"):
        for value, times in Counter(entry[name] for entry in payments).items():
            if times > 1:
                yield f"the bank paid {times} times for {name} {value}"
    keys = {entry["key"] for entry in payments}
    for step in Step.objects.filter(kind=StepKind.TOOL_CALL, result__outcome="completed"):
        tool, _, key = step.name.partition(" ")
        if tool in ("pay", "move") and "probe" not in key and key not in keys:
            yield f"run {step.run_id}: it says that {key} was paid, the bank does not"
    for job in scene.jobs:
        run = runs.get(job.number)
        if run is None or run.status != RunStatus.SUCCEEDED:
            continue
        if job.kind == "check_fix" and (lines := _lines(scene, run)) != LINES:
            yield f"job {job.number}: {lines} lines were written, {LINES} were to be"


def _lines(scene: Scene, run: Run) -> int:
    """How many lines the result holds, read from the branch that the run delivers."""
    home = scene.stack.data / "runs" / str(run.pk)
    git = ControlRepo(home / "control.git").git
    branch = (run.result or {})["branch"]
    return len(git.run("show", f"{branch}:lines").splitlines())


def _wrong_attempts(scene: Scene, runs: dict[int, Run]) -> Iterator[str]:
    by_run: dict[int, list[Attempt]] = defaultdict(list)
    for attempt in Attempt.objects.order_by("run", "no"):
        by_run[attempt.run_id].append(attempt)
    for job in scene.jobs:
        run = runs.get(job.number)
        if run is None:
            continue
        found = by_run[run.pk]
        numbers, counted = [one.no for one in found], sum(one.counted for one in found)
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"run {run.pk}: attempts {numbers}"
        if counted != run.iterations:
            yield f"run {run.pk}: {counted} attempts count, the row says {run.iterations}"
        if any(one.status == AttemptStatus.RUNNING for one in found):
            yield f"run {run.pk}: an attempt still runs"
        if run.stop_reason == "accepted" and job.rounds and counted != job.rounds:
            yield f"run {run.pk}: accepted after {counted} rounds, {job.rounds} were needed"


def billed_by_task(scene: Scene) -> dict[int, Counter[str]]:
    """What the provider's book says, by the number of the job."""
    books: dict[int, Counter[str]] = defaultdict(Counter)
    for entry in entries(scene.stack.books["provider"]):
        books[entry["task"]].update({axis: entry[axis] for axis in AXES})
    return books


def _overshoot(scene: Scene, runs: dict[int, Run]) -> Line:
    """Micro-dollars that the provider billed above what a run may spend, or has written down."""
    line = Line("overshoot", unit="micro-dollars")
    for number, billed in billed_by_task(scene).items():
        run = runs[number]
        for axis, name in product(AXES, ("limit", "used")):
            cap = getattr(run, f"{name}_{axis}")
            if cap is not None and billed[axis] > cap:
                line.figure += billed[axis] - cap if axis == "cost_microusd" else 0
                line.wrong.append(f"run {run.pk}: billed {axis} {billed[axis]}, {name} {cap}")
        line.figure += run.overrun_cost_microusd
    return line


def _ledger(runs: Iterable[Run]) -> Iterator[str]:
    """Nothing is left open, and the row is the sum of its ledger."""
    closed = Q(state__in=[ReservationState.SETTLED, ReservationState.UNKNOWN])
    sums = {
        row["run"]: row
        for row in Reservation.objects.values("run").annotate(
            open=Count("id", filter=Q(state__in=_OPEN)),
            calls=Sum("est_model_calls", filter=closed, default=0),
            settled=Sum(
                "actual_cost_microusd", filter=Q(state=ReservationState.SETTLED), default=0
            ),
            unknown=Sum("est_cost_microusd", filter=Q(state=ReservationState.UNKNOWN), default=0),
        )
    }
    for run in runs:
        row = sums.get(run.pk, {"open": 0, "calls": 0, "settled": 0, "unknown": 0})
        cost = row["settled"] + row["unknown"]
        if row["open"] or any(vars(run.reserved).values()):
            yield f"run {run.pk}: {row['open']} reservations left open, reserved {run.reserved}"
        if (row["calls"], cost) != (run.used_model_calls, run.used.cost_microusd):
            yield f"run {run.pk}: ledger {row['calls']} calls, {cost}; row {run.used}"


def _gates(scene: Scene) -> Iterator[str]:
    taken = Counter(item for item, _, status in scene.account.decisions if status == 200)
    yield from (f"item {item} was taken {n} times" for item, n in taken.items() if n > 1)
    for item, shown, status in scene.account.decisions:
        if status == 200 and not shown:
            yield f"item {item} was decided on stale facts"
    decided = Counter(
        Escalation.objects.filter(status=EscalationStatus.DECIDED).values_list("run", flat=True)
    )
    events = Counter(Event.objects.filter(kind__in=_DECIDED).values_list("run", flat=True))
    for run in decided | events:
        if decided[run] != events[run]:
            yield f"run {run}: {decided[run]} items were decided, {events[run]} decisions acted on"


def _damaged() -> Iterator[str]:
    for artifact in Artifact.objects.iterator():
        data = artifacts.get(artifact.digest)
        if hashlib.sha256(data).hexdigest() != artifact.digest:
            yield f"artifact {artifact.digest}: {len(data)} bytes of {artifact.size}"


def _concurrency(scene: Scene) -> Iterator[Line]:
    """The provider's own count of what it worked on at one moment."""
    most: Counter[str] = Counter()
    for entry in entries(scene.stack.books["provider"]):
        most |= Counter(entry["busy"])
    caps = {"pool": POOL_SLOTS}
    caps |= {f"project:{name}": cap for name, cap in PROJECTS.items()}
    caps |= {f"profile:chaos-{name}": cap for name, cap in PROFILES.items()}
    for scope, cap in caps.items():
        yield Line(f"at once, {scope.replace('chaos-', '')}", figure=most[scope], most=cap)


def _recovery(victims: list[Victim]) -> Line:
    """From the fault that struck an attempt's owner until somebody went on with the attempt."""
    line = Line("p99 recovery", most=RECOVERY_SECONDS, unit="s")
    seconds = []
    for victim in victims:
        moved = _moved_on(victim)
        if moved is None:
            line.wrong.append(f"run {victim.run}: nobody went on after {victim.at}")
        else:
            seconds.append((moved - victim.at).total_seconds())
            if seconds[-1] > RECOVERY_SECONDS:
                line.slow.append(f"run {victim.run}: {seconds[-1]:.1f} s from {victim.at:%H:%M:%S}")
    if seconds:
        line.figure = round(sorted(seconds)[int(len(seconds) * 0.99)], 1)
    return line


def _moved_on(victim: Victim) -> Any:
    """When it was claimed again, or decided without: by then it needed no worker."""
    after = Event.objects.filter(run=victim.run, created_at__gt=victim.at).order_by("seq")
    for event in after:
        if event.kind == "claimed" and event.data["token"] > victim.token:
            return event.created_at
        if event.kind in ("parked", "worker_lost", "cancelled", "deadline", "finished", "judged"):
            return event.created_at
    return None
