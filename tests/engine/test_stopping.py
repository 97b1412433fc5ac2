"""Cancel, pause and the kill switch reach real workers: lease 60 s, so no heartbeat helps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loops import feed, gates
from loops.core.limits import Amount
from loops.models import EVERYTHING, SWITCH, AgentProfile, Hold, Reservation, Run, Task
from loops.store.holds import Request, Target
from tests.dashboard.local.support import alive
from tests.engine import processes, rows, scenes
from tests.messages_server import Answer, MessagesServer, says
from tests.messages_server import Request as Asked
from workers import dispatch, stopping
from workers.intake import TaskRequest, accept
from workers.iteration import run_iteration

pytestmark = pytest.mark.django_db(transaction=True)
WAIT_FOR_EVER = "{ setsid sleep 600 & echo $! >> pids; sleep 600 & echo $! >> pids; wait; }"
ONE_SECOND = 1.0
AT_ONCE = 5.0
"""Far below the heartbeat of 20 s, and above what a busy machine needs; alone it takes 0.2 s."""


@contextmanager
def plant(log: Path, workers: int = 1, **env: str) -> Iterator[list[processes.Running]]:
    """A tender and workers whose heartbeat comes every 20 s."""
    facts = {"LOOPWARDEN_LEASE_SECONDS": "60", "LOOPWARDEN_SANDBOX": "none", **env}
    with processes.tender(log, **facts):
        if workers == 1:
            with processes.worker(log, **facts) as one:
                yield [one]
        else:
            with processes.worker(log, **facts) as one, processes.worker(log, **facts) as two:
                yield [one, two]


def asking(server: MessagesServer, name: str = "pair", iterations: int = 3) -> Run:
    """A coder_reviewer run whose agents are models at this server."""
    for role in ("coder", "reviewer"):
        AgentProfile.objects.get_or_create(
            name=role,
            defaults={
                "provider": "anthropic",
                "config": {
                    "model": role, "base_url": server.url, "key_env": "", "max_tokens": 400,
                },
                "input_usd_per_mtok": 3,
                "output_usd_per_mtok": 15,
                "max_running": 64,
            },
        )  # fmt: skip
    task = accept(
        TaskRequest(
            pattern="coder_reviewer",
            title=name,
            spec={"task": f"Write {name}."},
            limits={"iterations": iterations},
            agents={"coder": "coder", "reviewer": "reviewer"},
            on_limit="stop",
        ),
        project=scenes.project(max_running=64),
        user=None,
    )
    return task.runs.get()


def commanding(tmp_path: Path) -> Task:
    """A check_fix task whose check never ends and starts processes of its own."""
    check = f"cd {tmp_path} && {WAIT_FOR_EVER}"
    return scenes.fix_task(scenes.repository(tmp_path / "repo", n="0\n"), check, "true")


def pids(tmp_path: Path) -> list[int]:
    """The processes that the check has started, once both are there."""
    file = tmp_path / "pids"
    return processes.until(lambda: found if len(found := _read(file)) == 2 else None)  # type: ignore[no-any-return]


def _read(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def now(run: Run) -> Run:
    """As it stands in the database."""
    run.refresh_from_db()
    return run


def seconds_until_cancelled(run: Run) -> float:
    """Cancel it as a person does, and wait for the end."""
    began = time.monotonic()
    assert gates.cancel(run, actor="alice")
    processes.until(lambda: now(run).status == "cancelled", seconds=10)
    return time.monotonic() - began


def assert_settled(run: Run) -> None:
    """Nothing is reserved, and the row says what the ledger says."""
    assert now(run).reserved == Amount()
    charged = Reservation.objects.filter(run=run, state__in=["settled", "unknown"])
    known = [
        r.est_cost_microusd if r.state == "unknown" else r.actual_cost_microusd for r in charged
    ]
    assert run.used.cost_microusd == sum(known)  # type: ignore[arg-type]
    assert run.used.model_calls == sum(r.est_model_calls for r in charged)
    assert not Reservation.objects.filter(run=run, state__in=["reserved", "in_flight"]).exists()


def no_slots() -> bool:
    """Whether nobody holds a slot."""
    return feed.client().zcard("loopwarden:slots:pool") == 0


@pytest.mark.worker
def test_a_cancel_reaches_a_call_and_a_command_at_once(log: Path, tmp_path: Path) -> None:
    with MessagesServer(Answer(hang=True)) as server, plant(log):
        run = asking(server)
        assert server.hanging.wait(30)
        assert seconds_until_cancelled(run) < AT_ONCE
        assert_settled(run)
        assert (run.used.model_calls, run.used.cost_microusd > 0) == (1, True)

        command = commanding(tmp_path).runs.get()
        started = pids(tmp_path)
        assert all(map(alive, started))
        assert seconds_until_cancelled(command) < AT_ONCE
        assert not any(map(alive, started))
        assert_settled(command)
        assert command.used.tool_calls == 1
        processes.until(no_slots)
        assert len(server.messages) == 1


def test_a_cancel_ends_a_run_at_once_that_nobody_works_on(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    waiting = scenes.step(scenes.fix_task(repo, "exit 75", "true").runs.get())
    gate = scenes.drive(scenes.pair_task(["no fence", "none again"], []).runs.get())
    queued, admitted = rows.queued(), rows.queued()
    Run.objects.filter(pk=queued.pk).update(next_at=queued.created_at.replace(year=2999))
    assert dispatch.admit_waiting() == 1
    assert now(admitted).admitted_at is not None
    assert (now(waiting).status, gate.status) == ("queued", "at_gate")
    for run in (waiting, gate, queued, admitted):
        assert gates.cancel(run, actor="alice")
        assert now(run).status == "cancelled"
        assert_settled(run)
    assert not gate.escalations.filter(status="open").exists()
    assert not no_slots()
    run_iteration(admitted.pk, 1, worker="late")
    assert no_slots()
    assert not admitted.attempts.exists()


def test_a_run_that_is_paused_after_its_admission_waits_again_without_slots() -> None:
    for scope in ("run", "project", EVERYTHING, SWITCH):
        run = rows.queued()
        assert dispatch.admit_waiting() == 1
        hold = {"run": {"run": run}, "project": {"project": run.task.project}}.get(scope, {})
        target = Target(**hold, switch=scope == SWITCH)  # type: ignore[arg-type]
        stopping.pause(target, Request(actor="alice"))
        assert (now(run).admitted_at, no_slots()) == (None, True)
        assert stopping.resume(target, Request(actor="alice"))
        assert dispatch.admit_waiting() == 1

        # the dispatcher had looked before the pause and admits it after
        Hold.objects.create(target=target.key, request_id="x", actor="a", **hold)  # type: ignore[misc]
        run_iteration(run.pk, 1, worker="w")
        assert (now(run).status, run.admitted_at, no_slots()) == ("queued", None, True)
        assert not run.attempts.exists()
        assert stopping.resume(target, Request(actor="alice"))
        assert gates.cancel(run, actor="alice")


@pytest.mark.worker
@pytest.mark.parametrize("told", [True, False], ids=["by a word", "by the database alone"])
def test_the_switch_stops_new_calls_within_a_second(log: Path, told: bool) -> None:
    stamps: list[float] = []
    numbers = itertools.count()

    def answer(asked: Asked) -> Answer:
        stamps.append(time.monotonic())
        time.sleep(0.01)
        text = f"work {next(numbers)}"
        coder = asked.body["model"] == "coder"
        return says(scenes.code(text) if coder else scenes.changes(text))

    with MessagesServer(*[answer] * 20_000) as server, plant(log, workers=2):
        found = [asking(server, f"pair {n}", iterations=1000) for n in range(12)]
        processes.until(lambda: len(stamps) > 60)
        switch = Target(switch=True)
        if told:
            stopping.pause(switch, Request(actor="alice", why="wrong prices"))
        else:
            Hold.objects.create(target=SWITCH, request_id="x", actor="alice")
        at, before = time.monotonic(), len(stamps)
        processes.until(lambda: time.monotonic() > at + 2)
        late = max(stamps) - at
        assert before > 60
        assert late < ONE_SECOND, f"a request came {late:.2f} s after the switch"
        processes.until(lambda: not Run.objects.filter(status="running").exists())
        assert {now(run).status for run in found} == {"queued"}
        processes.until(no_slots)
        for run in found:
            assert_settled(run)
            assert not run.attempts.filter(claims__gt=1).exists()
        stopped = len(stamps)
        stopping.resume(switch, Request(actor="alice"))
        processes.until(lambda: len(stamps) > stopped + 30)
        for run in found:
            gates.cancel(run, actor="alice")
        processes.until(lambda: not Run.objects.exclude(status="cancelled").exists())
        billed = server.billed("input_tokens") * 3 + server.billed("output_tokens") * 15
    assert sum(now(run).used.cost_microusd for run in found) >= billed


@pytest.mark.worker
def test_the_switch_kills_commands_and_ends_hanging_calls(log: Path, tmp_path: Path) -> None:
    with MessagesServer(Answer(hang=True)) as server, plant(log):
        call, command = asking(server), commanding(tmp_path).runs.get()
        assert server.hanging.wait(30)
        started = pids(tmp_path)
        began = time.monotonic()
        stopping.pause(Target(switch=True), Request(actor="alice"))
        processes.until(lambda: not Run.objects.filter(status="running").exists(), seconds=10)
        assert time.monotonic() - began < AT_ONCE
        assert not any(map(alive, started))
        for run in (call, command):
            assert (now(run).status, run.admitted_at) == ("queued", None)
            assert run.events.filter(kind="handed_back", text__contains="stopped").count() == 1
            assert_settled(run)
            # what was interrupted is done again, never replayed as if it had ended
            assert [step.status for step in run.steps.all()] == ["failed"]
        processes.until(no_slots)
