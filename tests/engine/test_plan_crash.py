"""Workers that die around an action: it happens at most once, and nobody guesses (S2-42)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loops.models import Escalation, Run, Step
from tests.engine import processes
from tests.engine.plan_tasks import TOOLS, decide, paying

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.worker]
WITH_TOOLS = {"LOOPWARDEN_TOOLS": ",".join(TOOLS)}


@pytest.fixture(autouse=True)
def _tools(settings: Any) -> None:
    """Whoever takes a task in knows the same tools as its workers."""
    settings.LOOPWARDEN_TOOLS = TOOLS


def rests(run: Run) -> Run:
    """The run once it has ended or waits for a person."""

    def resting() -> Run | None:
        run.refresh_from_db()
        return run if run.status not in ("queued", "running") else None

    found: Run = processes.until(resting)
    return found


def test_rc136_an_approval_survives_a_restart_of_everything(log: Path, tmp_path: Path) -> None:
    book = tmp_path / "book"
    run = paying(book).runs.get()
    with processes.tender(log, **WITH_TOOLS), processes.worker(log, **WITH_TOOLS):
        assert rests(run).status == "at_gate"
    decide(run, "approve")
    with processes.tender(log, **WITH_TOOLS), processes.worker(log, **WITH_TOOLS):
        assert rests(run).status == "succeeded"
    assert len(book.read_text().splitlines()) == 1
    assert Escalation.objects.filter(run=run).count() == 1


def test_s2_42_s2_26_a_worker_that_dies_after_the_write_leaves_it_unknown_and_done_once(
    log: Path, tmp_path: Path
) -> None:
    book = tmp_path / "book"
    run = paying(book).runs.get()
    with processes.tender(log, **WITH_TOOLS):
        with processes.worker(log, **WITH_TOOLS) as first:
            assert rests(run).status == "at_gate"
            (tmp_path / "book.dies").write_text(str(first.process.pid))
            decide(run, "approve")
            assert first.process.wait(60) == -9
        with processes.worker(log, **WITH_TOOLS):
            assert rests(run).stop_reason == "outcome_unknown"
            assert len(book.read_text().splitlines()) == 1
            used = Step.objects.get(run=run, kind="tool_call")
            assert used.status == "outcome_unknown"
            decide(run, "happened")
            assert rests(run).status == "succeeded"
    assert len(book.read_text().splitlines()) == 1


@pytest.mark.parametrize("point", ["answered", "recorded-1"])
def test_s2_42_a_worker_killed_anywhere_pays_once(point: str, log: Path, tmp_path: Path) -> None:
    book = tmp_path / "book"
    run = paying(book).runs.get()
    with processes.tender(log, **WITH_TOOLS):
        with processes.worker(log, **WITH_TOOLS):
            assert rests(run).status == "at_gate"
        decide(run, "approve")
        crash = {"LOOPWARDEN_CRASHPOINT": f"{point}@{tmp_path / 'died'}"}
        with processes.worker(log, **WITH_TOOLS, **crash) as first:
            assert first.process.wait(60) == -9
        with processes.worker(log, **WITH_TOOLS):
            resting = rests(run)
            if point == "answered":
                assert resting.stop_reason == "outcome_unknown"
                decide(run, "happened")
            assert rests(run).status == "succeeded"
    assert len(book.read_text().splitlines()) == 1
