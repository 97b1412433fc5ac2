"""`active_seconds` bounds what is at work now, not only what starts next."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F

from loops.core.errors import WorkingTimeUsed
from loops.core.limits import Amount
from loops.models import AgentProfile, AttemptStatus, Run
from loops.store import attempts
from tests.engine import rows, scenes
from workers.intake import TaskRequest, accept
from workers.lease import Lease
from workers.recorder import Performed, Recorder

pytestmark = pytest.mark.django_db(transaction=True)

CAP = 2
FOR_EVER = "sleep 300"
OVER = 3.0
"""What may come on top: noting the files and ending the processes, on a busy machine."""


def hanging(tmp_path: Path, pattern: str, spec: dict[str, Any], on_limit: str, **facts: Any) -> Run:
    """A run that would not end by itself."""
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    task = accept(
        TaskRequest(
            pattern=pattern,
            title="hang",
            spec=spec,
            limits={"iterations": 1 if pattern == "one_pass" else 3, "active_seconds": CAP},
            on_limit=on_limit,
            repo=str(repo),
            **facts,
        ),
        project=scenes.project(),
        user=None,
    )
    return task.runs.get()


def agent_that_hangs() -> None:
    """An agent whose command never ends; a call costs at most a dollar."""
    AgentProfile.objects.create(
        name="slow",
        provider="command",
        config={
            "argv": [sys.executable, "-c", "import time; time.sleep(300)"],
            "usage_json": True,
            "max_tokens": 1000,
            "max_cost_usd": "1",
        },
    )


def assert_ended_at_its_working_time(run: Run, status: str) -> None:
    """Its only attempt was cut off and counts for nothing."""
    began = time.monotonic()
    run = scenes.drive(run)
    assert (run.status, run.stop_reason) == (status, "active_seconds")
    assert run.reason == "The allowed working time is used. Cap 2 s, used 2 s."
    assert time.monotonic() - began < CAP + OVER
    assert CAP * 1000 <= run.active_ms < (CAP + OVER) * 1000
    assert (run.iterations, run.errors, run.attempts.count()) == (0, 0, 1)
    assert run.attempts.get().status == AttemptStatus.LIMIT


@pytest.mark.parametrize(
    ("pattern", "spec", "on_limit", "status"),
    [
        ("one_pass", {"command": FOR_EVER}, "stop", "budget_exhausted"),
        ("check_fix", {"checks": [FOR_EVER], "fixes": ["true"]}, "gate", "at_gate"),
    ],
)
def test_a_command_ends_with_the_working_time(
    tmp_path: Path, pattern: str, spec: dict[str, Any], on_limit: str, status: str
) -> None:
    assert_ended_at_its_working_time(hanging(tmp_path, pattern, spec, on_limit), status)


def test_commands_side_by_side_end_with_the_working_time(tmp_path: Path) -> None:
    scenes.agent("hand", "implementer", {"text": "done", "writes": {"a.txt": "a"}})
    scenes.agent("judge", "reviewer")
    spec = {"task": "Do it.", "build": FOR_EVER, "test": "true", "yield_after_each": False}
    agents = {"implementer": "hand", "reviewer": "judge"}
    run = hanging(tmp_path, "implement_verify", spec, "stop", agents=agents)
    assert_ended_at_its_working_time(run, "budget_exhausted")


def test_an_agent_ends_with_the_working_time_and_is_charged_once(tmp_path: Path) -> None:
    agent_that_hangs()
    spec, agents = {"prompt": "Do it.", "edits_files": True}, {"worker": "slow"}
    run = hanging(tmp_path, "one_pass", spec, "stop", agents=agents)
    assert_ended_at_its_working_time(run, "budget_exhausted")
    run.refresh_from_db()
    assert run.used == Amount(model_calls=1, tokens=1000, cost_microusd=1_000_000)


def used_up(**facts: Any) -> tuple[Run, Recorder]:
    """An attempt of a run that has worked for as long as it may."""
    run, claim = rows.claimed(limits={"active_seconds": CAP}, active_ms=CAP * 1000, **facts)
    return run, Recorder(Lease(claim, []), replayable=lambda _: True)


def test_nothing_starts_after_the_working_time() -> None:
    run, recorder = used_up()
    with pytest.raises(WorkingTimeUsed, match="cap 2, used 2"):
        recorder.step(
            kind="command", role="r", name="n", digest="d", worst=Amount(tool_calls=1),
            act=lambda: Performed(result={}),
        )  # fmt: skip
    run.refresh_from_db()
    assert (run.used, run.reserved, run.steps.count()) == (Amount(), Amount(), 0)


def test_what_was_handed_back_has_worked() -> None:
    run, claim = rows.claimed()
    claim = replace(claim, asked_at=claim.asked_at - 7)
    assert attempts.hand_back(claim, why="its worker shuts down")
    run.refresh_from_db()
    assert 7_000 <= run.active_ms < 10_000


def test_a_lost_worker_has_worked_until_its_last_heartbeat() -> None:
    run, _ = rows.claimed()
    early = timedelta(minutes=10)
    rows.change(
        run,
        lease_expires_at=F("lease_expires_at") - early + timedelta(seconds=7),
        attempt_deadline_at=F("attempt_deadline_at") - early,
    )
    assert attempts.take_back(run)
    run.refresh_from_db()
    assert 6_900 <= run.active_ms <= 7_100


def test_a_worker_that_was_lost_at_once_has_worked_for_no_time() -> None:
    run, _ = rows.claimed()
    assert attempts.take_back(rows.lose_lease(run))
    run.refresh_from_db()
    assert run.active_ms == 0
