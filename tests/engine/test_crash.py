"""Workers that are killed in the middle of a run: it ends as it would have."""

from __future__ import annotations

from pathlib import Path

import pytest

from loops.models import Attempt, Reservation, Run, Step
from tests.engine import processes, scenes

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.worker]

# Where the worker dies, and how many of the four calls are then paid for although they are lost.
POINTS = {
    "claimed": 0,
    "reserved": 0,
    "sent": 1,
    "answered": 1,
    "recorded-1": 0,
    "decided": 0,
    "finished": 0,
}


def test_a_worker_runs_a_task_from_submission_to_its_end(log: Path) -> None:
    task = scenes.pair_task(
        [scenes.code("one"), scenes.code("two")], [scenes.changes("more"), scenes.APPROVED]
    )
    with processes.worker(log), processes.tender(log):
        run = processes.until(lambda: _ended(task.runs.get()))
    assert (run.status, run.iterations) == ("succeeded", 2)
    assert run.started_at is not None


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_killed_at_a_named_point_loses_and_doubles_nothing(
    point: str, log: Path, tmp_path: Path
) -> None:
    task = scenes.pair_task(
        [scenes.code("one"), scenes.code("two")], [scenes.changes("more"), scenes.APPROVED]
    )
    marker = tmp_path / "died"
    with processes.tender(log):
        with processes.worker(log, LOOPWARDEN_CRASHPOINT=f"{point}@{marker}") as first:
            assert first.process.wait(60) == -9
        with processes.worker(log):
            run = processes.until(lambda: _ended(task.runs.get()))
    assert marker.exists()
    assert (run.status, run.stop_reason, run.iterations) == ("succeeded", "accepted", 2)
    assert list(run.attempts.order_by("no").values_list("no", "counted")) == [(1, True), (2, True)]
    assert _steps(run) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert run.used.model_calls == 4 + POINTS[point]
    assert run.used.cost_microusd == 3_000 * (4 + POINTS[point])
    assert run.reserved.cost_microusd == 0
    charged = Reservation.objects.filter(run=run, state__in=["settled", "unknown"])
    assert charged.count() == run.used.model_calls


def test_a_worker_killed_during_a_fix_starts_again_from_the_snapshot(
    log: Path, tmp_path: Path
) -> None:
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    task = scenes.fix_task(repo, "test $(cat n) = 2", "echo $(($(cat n) + 1)) > n", iterations=5)
    with processes.tender(log):
        point = f"recorded-2@{tmp_path / 'died'}"
        with processes.worker(log, LOOPWARDEN_CRASHPOINT=point) as first:
            assert first.process.wait(60) == -9
        with processes.worker(log):
            run = processes.until(lambda: _ended(task.runs.get()))
    assert (run.status, run.iterations) == ("succeeded", 2)
    commands = Step.objects.filter(run=run, kind="command").values_list("attempt_no", flat=True)
    assert sorted(commands) == [1, 2]


def test_s4_02_a_worker_killed_among_side_by_side_checks_repeats_only_the_others(
    log: Path, tmp_path: Path
) -> None:
    died = tmp_path / "died"
    wait = f"until [ -e {died} ]; do :; done"
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    task = scenes.verify_task(
        repo, [{"n": "1\n"}], [scenes.review("pass")], lint="true", test=wait, build=wait
    )
    env = {"LOOPWARDEN_SANDBOX": "none"}
    with processes.tender(log):
        with processes.worker(log, LOOPWARDEN_CRASHPOINT=f"recorded-2@{died}", **env) as first:
            assert first.process.wait(60) == -9
        with processes.worker(log, **env):
            run = processes.until(lambda: _ended(task.runs.get()))
    assert (run.status, run.iterations) == ("succeeded", 1)
    assert _steps(run) == [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5)]
    assert (run.used.model_calls, run.used.tool_calls, run.reserved.tool_calls) == (2, 5, 0)


def test_a_worker_that_dies_every_time_is_stopped_by_the_limit(log: Path, tmp_path: Path) -> None:
    task = scenes.pair_task([scenes.code("one")], [scenes.APPROVED])
    with processes.tender(log):
        for attempt in range(3):
            point = f"sent@{tmp_path / f'died-{attempt}'}"
            with processes.worker(log, LOOPWARDEN_CRASHPOINT=point) as running:
                assert running.process.wait(60) == -9
        run = processes.until(lambda: _ended(task.runs.get()))
    assert (run.status, run.stop_reason) == ("at_gate", "worker_lost")
    assert Attempt.objects.get(run=run).claims == 3


def test_a_worker_told_to_stop_hands_its_attempt_back_at_once(log: Path, tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    gate = tmp_path / "go"
    wait = f"until [ -e {gate} ]; do :; done"
    task = scenes.fix_task(repo, f"touch {tmp_path}/began; {wait}; test -e done", "touch done")
    with processes.tender(log, LOOPWARDEN_LEASE_SECONDS="60"):
        env = {"LOOPWARDEN_LEASE_SECONDS": "60", "LOOPWARDEN_SANDBOX": "none"}
        with processes.worker(log, **env) as first:
            processes.until((tmp_path / "began").exists)
            first.process.terminate()
            gate.touch()
            first.process.wait(30)
        handed = task.runs.get().events.filter(kind="handed_back").exists()
        with processes.worker(log, **env):
            run = processes.until(lambda: _ended(task.runs.get()), seconds=30)
    assert handed
    assert run.status == "succeeded"


def _ended(run: Run) -> Run | None:
    return run if run.status not in ("queued", "running") else None


def _steps(run: Run) -> list[tuple[int, int]]:
    done = Step.objects.filter(run=run, status="done").order_by("attempt_no", "seq")
    return list(done.values_list("attempt_no", "seq"))
