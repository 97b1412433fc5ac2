"""Deadlines hold without workers and without a broker, and by the database's clock alone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now

from dashboard import tokens
from dashboard.local.ports import free_port
from loops import clock
from loops.core.lifecycle import RunStatus, StopReason
from loops.gates import Proposal, park
from loops.models import Escalation, Project, Run
from tests.engine import processes, rows, scenes

pytestmark = [pytest.mark.worker, pytest.mark.django_db(transaction=True)]
STEPPED = str(Path(__file__).parent / "stepped")
HOUR = 3600


def stepped(seconds: int) -> dict[str, str]:
    """The environment of a process whose time of day is that far off."""
    return {"PYTHONPATH": STEPPED, "CLOCK_STEP": str(seconds)}


@contextmanager
def web(log: Path, **env: str) -> Iterator[str]:
    """A real web process; its address."""
    port = free_port()
    argv = [sys.executable, "-m", "uvicorn", "dashboard.asgi:application", "--port", str(port)]
    running = processes.Running(argv, log, processes.environment(**env))
    address = f"http://127.0.0.1:{port}"
    try:
        processes.until(lambda: answers(f"{address}/healthz"))
        yield address
    finally:
        running.stop()


def answers(url: str) -> bool:
    """Whether something says ok there."""
    try:
        return httpx2.get(url).status_code == 200
    except httpx2.TransportError:
        return False


def read(url: str, token: str) -> Any:
    """What the API says."""
    return httpx2.get(url, headers={"Authorization": f"Bearer {token}"}).json()


def api_token(project: Project) -> str:
    """A token of this project."""
    return tokens.create("t", user=User.objects.create_user("alice"), project=project, days=1)[1]


def twenty() -> list[Run]:
    """Twenty runs, of every status that can still end, one second before their deadline."""
    found = []
    for at in range(20):
        run, claim = rows.claimed() if at % 4 else (rows.queued(), None)
        if claim is not None and at % 2:
            ending = rows.ending(RunStatus.AT_GATE, stop_reason=StopReason.ITERATIONS)
            asked = Proposal(cause=StopReason.ITERATIONS, reason="used", packet={"why": "used"})
            assert park(claim, ending, asked)
        found.append(run)
    return found


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_web_and_database_alone_show_and_store_twenty_of_twenty_deadlines(
    log: Path, tmp_path: Path, step: int
) -> None:
    found = twenty()
    token = api_token(found[0].task.project)
    away = f"unix://{tmp_path}/nowhere.sock"
    with web(log, REDIS_URL=away, **stepped(step)) as address:
        shown = read(f"{address}/api/v1/tasks?limit=100", token)["data"]
        assert {one["run"]["status"] for one in shown} == {"queued", "running", "at_gate"}
        Run.objects.update(deadline_at=Now())
        shown = read(f"{address}/api/v1/tasks?limit=100&status=budget_exhausted", token)["data"]
        states = [(one["run"]["status"], one["run"]["stop_reason"]) for one in shown]
        assert states == [("budget_exhausted", "deadline")] * 20
        assert read(f"{address}/api/v1/escalations", token)["data"] == []
        processes.until(lambda: not Run.objects.exclude(stop_reason="deadline").exists())
    assert {run.status for run in Run.objects.all()} == {"budget_exhausted"}
    assert not Escalation.objects.filter(status="open").exists()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_of_a_workers_clock_changes_nothing(log: Path, step: int) -> None:
    coder = [{"text": scenes.code("one"), "delay_seconds": 0.3}]
    long = scenes.pair_task(coder, [scenes.APPROVED], name="long", deadline_seconds=600)
    slow = [{"text": scenes.code("one"), "delay_seconds": 600}]
    env = {**stepped(step), "LOOPWARDEN_LEASE_SECONDS": "60"}
    with processes.tender(log, **env), processes.worker(log, **env):
        run = processes.until(lambda: long.runs.filter(status="succeeded").first())
        assert (run.iterations, run.errors, run.attempts.get().claims) == (1, 0, 1)
        assert run.active_ms < 20_000
        # Only now: what a process needs to start must not use up a short deadline.
        began = time.monotonic()
        short = scenes.pair_task(slow, [scenes.APPROVED], name="short", deadline_seconds=6)
        ended = processes.until(lambda: short.runs.filter(stop_reason="deadline").first())
        assert 4 < time.monotonic() - began < 30
        # the worker gave the call up by itself, at the deadline
        step_of = ended.steps.get()
        processes.until(lambda: ended.steps.exclude(status="running").exists())
    step_of.refresh_from_db()
    assert (step_of.status, ended.attempts.get().status) == ("failed", "abandoned")


def test_rc192_a_deadline_counts_the_wait_in_the_queue_and_says_so(log: Path) -> None:
    run = rows.queued(deadline_at=Now() - rows.AGO)
    Run.objects.filter(pk=run.pk).update(created_at=Now() - 480 * rows.AGO)
    with processes.tender(log, **stepped(HOUR)):
        processes.until(lambda: Run.objects.filter(stop_reason="deadline").exists())
    run.refresh_from_db()
    assert (run.status, run.used.model_calls) == ("budget_exhausted", 0)
    assert "it waited in queue 40 min and never started" in run.reason


@pytest.mark.parametrize("step", [-HOUR])
def test_the_clock_of_what_is_shown_is_the_databases(step: int) -> None:
    ask = "import django; django.setup(); from loops import clock; print(clock.now().timestamp())"
    argv = [sys.executable, "-c", ask]
    said = subprocess.run(
        argv,
        cwd=processes.ROOT,
        env=processes.environment(**stepped(step)),
        capture_output=True,
        check=True,
    )
    assert abs(float(said.stdout) - clock.now().timestamp()) < 30
