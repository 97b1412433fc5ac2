"""A check that is not ready: the run waits in the database and holds nothing (S3-11, DESIGN 3)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from loops import feed
from loops.models import AttemptStatus, Outbox, Run
from tests.engine import scenes
from workers import dispatch

pytestmark = pytest.mark.django_db(transaction=True)

PR = "https://github.com/acme/till/pull/7"
GH = """#!/bin/sh
# A stand-in for gh: the state of the checks is what the file beside it says.
cd "$(dirname "$0")"
echo "$@" >> asked
read -r state < state
case "$state" in
  none) echo "no checks reported on the 'fix' branch" >&2; exit 1 ;;
  pending) printf 'build\\tpending\\t0\\thttps://x/actions/runs/91\\n'; exit 8 ;;
  fail) printf 'lint\\tpass\\t3s\\t\\nbuild\\tfail\\t2m\\thttps://x/actions/runs/91/job/3\\n'
    exit 1 ;;
  pass) exit 0 ;;
esac
"""


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with a counter."""
    return scenes.repository(tmp_path / "repo", n="0\n")


@pytest.fixture
def gh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Path:
    """The stand-in on the commands' path; returns its folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "gh").write_text(GH)
    (folder / "gh").chmod(0o755)
    settings.LOOPWARDEN_SANDBOX = "none"
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_rc053_a_waiting_run_holds_no_worker_no_slot_and_no_iteration(repo: Path) -> None:
    check = "echo x >> looks; test $(wc -l < looks) = 3 || exit 75"
    before = timezone.now()
    run = scenes.step(scenes.fix_task(repo, check, "true").runs.get())
    assert (run.status, run.iterations, run.errors) == ("queued", 0, 0)
    assert (run.lease_expires_at, run.admitted_at) == (None, None)
    assert run.next_at >= before + timedelta(seconds=30)
    assert run.sentence == f"Not ready yet: check 1 ({check}). It looks again in 30 s."
    assert feed.client().zcard("loopwarden:slots:pool") == 0
    assert dispatch.admit_waiting() == 0
    assert not Outbox.objects.filter(run=run, attempt_no=run.attempt_no).exists()
    run = scenes.drive(run)
    assert (run.status, run.iterations) == ("succeeded", 0)
    assert [a.status for a in run.attempts.order_by("no")] == [
        AttemptStatus.WAITED,
        AttemptStatus.WAITED,
        AttemptStatus.JUDGED,
    ]
    assert not any(a.counted for a in run.attempts.all())


def test_looks_are_bounded_and_the_end_says_so(repo: Path) -> None:
    task = scenes.fix_task(repo, "exit 75", "true", spec={"max_polls": 2})
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason, run.iterations) == ("budget_exhausted", "polls", 0)
    assert run.reason == "Not ready after 2 looks: check 1 (exit 75)."


def test_a_deadline_ends_a_wait(repo: Path) -> None:
    from workers import sweeper

    run = scenes.step(scenes.fix_task(repo, "exit 75", "true").runs.get())
    Run.objects.filter(pk=run.pk).update(deadline_at=timezone.now())
    sweeper.run_pass()
    run.refresh_from_db()
    assert (run.status, run.stop_reason) == ("budget_exhausted", "deadline")


def test_s3_10_quota_skipped_is_marked_and_is_no_green(repo: Path) -> None:
    fix = """echo '{"fixed": false, "skipped": true, "reason": "quota"}'; exit 1"""
    run = scenes.drive(scenes.fix_task(repo, "exit 1", fix).runs.get())
    assert (run.status, run.stop_reason, run.iterations) == ("succeeded", "quota_skipped", 0)
    assert run.result is not None
    assert run.result["passed_quota_skipped"] is True
    assert run.steps.filter(kind="command").count() == 1


def test_rc065_s3_11_a_pull_request_is_watched_through_gh(repo: Path, gh: Path) -> None:
    (gh / "state").write_text("none\n")
    fix = f"cat > /dev/null; echo pass > {gh}/state; echo x > mended"
    run = scenes.step(scenes.fix_task(repo, f"gh-poll:{PR}", fix).runs.get())
    assert "Not ready yet" in run.reason
    (gh / "state").write_text("pending\n")
    run = scenes.step(run)
    (gh / "state").write_text("fail\n")
    run = scenes.step(run)
    assert (run.iterations, run.attempts.get(no=3).label) == (1, "checks failed")
    run = scenes.drive(run)
    assert (run.status, run.iterations) == ("succeeded", 1)
    asked = (gh / "asked").read_text().splitlines()
    assert asked == [f"pr checks {PR}"] * 5


def test_s3_11_the_blocking_watch_asks_gh_to_watch_and_fail_fast(repo: Path, gh: Path) -> None:
    (gh / "state").write_text("fail\n")
    fix = f"echo pass > {gh}/state; echo x > n"
    run = scenes.drive(scenes.fix_task(repo, f"gh:{PR}", fix).runs.get())
    assert run.status == "succeeded"
    watch = f"pr checks {PR} --watch --fail-fast"
    assert (gh / "asked").read_text().splitlines() == [watch, f"pr checks {PR}", watch]
