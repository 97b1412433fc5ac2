"""A worker that must go: told by a person, told by SIGTERM, and everything restarted under load."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from dashboard.local.valkey import ValkeyServer
from loops.models import Reservation, Run, WorkerPresence
from loops.store.holds import Request, Target
from tests.dashboard.local.support import alive
from tests.engine import processes, scenes
from workers import stopping

pytestmark = [pytest.mark.worker, pytest.mark.django_db(transaction=True)]
SLOW = {"LOOPWARDEN_LEASE_SECONDS": "60", "LOOPWARDEN_SANDBOX": "none"}


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A server that this test may stop."""
    with ValkeyServer(tmp_path / "redis") as server:
        yield server


def name_of(worker: processes.Running) -> str:
    """Its name, once it is there."""
    ending = f"-{worker.process.pid}"
    found = WorkerPresence.objects.filter(kind="worker", name__endswith=ending)
    return str(processes.until(found.first).name)


def drain(name: str, *more: str) -> str:
    """As a person does it."""
    said = io.StringIO()
    call_command("drain", name, *more, stdout=said)
    return said.getvalue()


def success(run: Run) -> bool:
    """Whether it has succeeded."""
    run.refresh_from_db()
    return run.status == "succeeded"


def pair(name: str) -> Run:
    """A run that any worker carries out at once."""
    return scenes.pair_task([scenes.code("x")], [scenes.APPROVED], name=name).runs.get()


def test_a_drained_worker_finishes_and_takes_nothing_new(log: Path, tmp_path: Path) -> None:
    go, began = tmp_path / "go", tmp_path / "began"
    check = f"touch {began}; until [ -e {go} ]; do sleep 0.05; done; test -e done"
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    with processes.tender(log, **SLOW), processes.worker(log, **SLOW) as first:
        long = scenes.fix_task(repo, check, "touch done").runs.get()
        processes.until(began.exists)
        assert "takes nothing new" in drain(name_of(first))
        processes.until(lambda: "Canceling queue" in log.read_text())
        other = pair("other")
        processes.until(lambda: other.wakeups.filter(sent_at__isnull=False).exists())
        with processes.worker(log, **SLOW) as second:
            processes.until(lambda: success(other))
            go.touch()
            processes.until(lambda: success(long))
            workers = list(long.attempts.order_by("no").values_list("worker", "claims"))
            assert workers == [(name_of(first), 1), (name_of(second), 1)]
            assert other.attempts.get().worker == name_of(second)
            drain(name_of(second))
            processes.until(lambda: log.read_text().count("Canceling queue") == 2)
            drain(name_of(first), "--undo")
            last = pair("last")
            processes.until(lambda: success(last))
            assert last.attempts.get().worker == name_of(first)
    with pytest.raises(CommandError, match="there is no worker nobody; there are:"):
        drain("nobody")


def test_a_worker_told_to_stop_gives_a_long_command_up_within_its_grace(
    log: Path, tmp_path: Path
) -> None:
    began, once = tmp_path / "began", tmp_path / "once"
    endless = f"setsid sleep 600 & echo $! > {began}; wait"
    check = f"if [ ! -e {once} ]; then touch {once}; {endless}; fi"
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    env = {**SLOW, "LOOPWARDEN_GRACE_SECONDS": "1"}
    with processes.tender(log, **env), processes.worker(log, **env) as first:
        run = scenes.fix_task(repo, check, "true").runs.get()
        child = int(processes.until(lambda: began.exists() and began.read_text()))
        with processes.worker(log, **env) as second:
            name_of(second)
            first.process.terminate()
            assert first.process.wait(6) == 0
            assert not alive(child)
            processes.until(lambda: success(run), seconds=10)
            attempt = run.attempts.get()
            assert (attempt.worker, attempt.claims) == (name_of(second), 1)
    assert run.events.filter(kind="handed_back").count() == 1
    assert not run.events.filter(kind="lease_expired").exists()
    assert run.reserved.tool_calls == 0


class Plant:
    """Two workers and two tenders, each of which can be stopped and started again."""

    def __init__(self, log: Path, **env: str) -> None:
        self._log, self._env = log, env
        self._stacks: dict[str, ExitStack] = {}
        self.running: dict[str, processes.Running] = {}

    def start(self, name: str) -> None:
        """Start it, or a new one in its place."""
        kind = processes.worker if name.startswith("worker") else processes.tender
        self._stacks[name] = ExitStack()
        self.running[name] = self._stacks[name].enter_context(kind(self._log, **self._env))

    def restart(self, name: str) -> None:
        """In order: SIGTERM, wait for the end, start."""
        self._stacks.pop(name).close()
        self.start(name)

    def kill(self, name: str) -> None:
        """Without order, and start."""
        self.running[name].kill()
        self.restart(name)

    def __enter__(self) -> Plant:
        for name in ("tender 1", "tender 2", "worker 1", "worker 2"):
            self.start(name)
        return self

    def __exit__(self, *_: Any) -> None:
        for stack in self._stacks.values():
            stack.close()


def test_a_restart_of_everything_under_load_loses_nothing(
    log: Path, tmp_path: Path, own_redis: ValkeyServer
) -> None:
    slow = {"delay_seconds": 0.2}
    tasks = [
        scenes.pair_task(
            [{"text": scenes.code("one"), **slow}, {"text": scenes.code("two"), **slow}],
            [{"text": scenes.changes("say two"), **slow}, {"text": scenes.APPROVED, **slow}],
            name=f"pair{n}",
        )
        for n in range(16)
    ]
    runs = [task.runs.get() for task in tasks]
    short = {"LOOPWARDEN_LEASE_SECONDS": "6", "LOOPWARDEN_GRACE_SECONDS": "1"}
    env = {"REDIS_URL": own_redis.url, **short}
    with Plant(log, **env) as plant:
        processes.until(lambda: Run.objects.filter(status="running").exists())
        for name in itertools.chain(("worker 1", "tender 1", "worker 2"), ["tender 2"]):
            plant.restart(name)
        own_redis.stop()
        own_redis.start()
        plant.kill("tender 1")
        plant.restart("worker 1")
        processes.until(lambda: all(map(success, runs)), seconds=90)
    for run in runs:
        assert (run.iterations, run.attempt_no, run.errors) == (2, 3, 0)
        assert list(run.attempts.order_by("no").values_list("no", "counted")) == [
            (1, True),
            (2, True),
        ]
        assert run.steps.filter(status="done").count() == 4
        assert run.reserved.cost_microusd == 0
        charged = Reservation.objects.filter(run=run, state__in=["settled", "unknown"]).count()
        assert run.used.cost_microusd == 3_000 * charged
        assert charged == run.used.model_calls >= 4


def test_a_pause_of_everything_survives_a_restart(log: Path) -> None:
    everything = Target()
    stopping.pause(everything, Request(actor="alice", why="upgrade"))
    run = pair("held")
    with processes.tender(log), processes.worker(log) as worker:
        name_of(worker)
        processes.until(lambda: WorkerPresence.objects.filter(kind="tender").exists())
        stopping.resume(everything, Request(actor="alice"))
        processes.until(lambda: success(run))
    assert run.attempts.count() == 1
