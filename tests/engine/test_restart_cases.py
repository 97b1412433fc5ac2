"""Lost, repeated, frozen and poisoned work, as people met it elsewhere (RC148 to RC160)."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from dashboard.local.valkey import ValkeyServer
from loops import gates
from loops.core.lifecycle import TERMINAL
from loops.models import Run, Step
from loops.store import artifacts
from tests.engine import forked, processes, scenes
from tests.engine.counting import CALLS, answer_of, assert_ends_as_ever, counting, models
from tests.engine.disturbed import Disturbed, rows_of
from tests.engine.forked import Forked
from tests.messages_server import Answer, MessagesServer, Request
from workers import dispatch
from workers.app import ITERATE, app
from workers.commands import OUTPUT_CAP

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.worker,
    pytest.mark.usefixtures("forks"),
]


def test_rc148_a_message_that_comes_again_during_the_work_does_nothing(
    log: Path, tmp_path: Path
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow(request: Request) -> Answer:
        asked.set()
        assert go_on.wait(60)
        return answer_of(request)

    with models(slow) as provider:
        run = counting(tmp_path / "repo")
        first = Forked(log, forked.work)
        assert asked.wait(60)
        for _ in range(2):
            app.send_task(ITERATE, args=[run.pk, 1], retry=False)
            assert Forked(log, forked.work).ended() == 0
        assert run.events.filter(kind="delivery_ignored").count() == 2
        assert len(provider.messages) == 1
        go_on.set()
        assert first.ended() == 0
        assert_ends_as_ever(run, provider, 0)
    assert set(run.attempts.values_list("claims", flat=True)) == {1}


def test_a_wakeup_that_somebody_is_publishing_is_left_to_them(log: Path) -> None:
    scenes.pair_task([scenes.code("one")], [scenes.APPROVED])
    first = Disturbed(log, "published", "stop")
    first.dies()
    assert dispatch.publish_unsent() == 0
    first.time_passes()
    assert dispatch.publish_unsent() == 1
    first.comes_back()


@pytest.mark.parametrize(("on_limit", "status"), [("stop", "failed"), ("gate", "at_gate")])
def test_rc150_a_run_that_kills_its_worker_each_time_is_stopped(
    on_limit: str, status: str, log: Path
) -> None:
    task = scenes.pair_task([scenes.code("one")], [scenes.APPROVED], on_limit=on_limit)
    run = task.runs.get()
    for number in range(3):
        folder = log.parent / str(number)
        folder.mkdir()
        poison = Disturbed(folder / "log", "sent", "kill")
        poison.dies()
        poison.time_passes()
    assert Forked(log, forked.work).ended() == 0
    run.refresh_from_db()
    assert (run.status, run.stop_reason) == (status, "worker_lost")
    assert run.attempts.get().claims == 3
    assert run.events.filter(kind="claimed").count() == 3
    # Each of the three may have been billed, so each is paid in full.
    assert (run.used.model_calls, run.used.cost_microusd) == (3, 9_000)


@pytest.mark.parametrize("point", ["delivered", "published"])
def test_rc152_what_was_aborted_while_a_worker_had_its_message_is_not_run(
    point: str, log: Path, tmp_path: Path, provider: MessagesServer
) -> None:
    run = counting(tmp_path / "repo")
    case = Disturbed(log, point, "stop")
    case.dies()
    assert gates.cancel(run, actor="ada")
    case.comes_back()
    case.others_work()
    run.refresh_from_db()
    assert (run.status, run.stop_reason) == ("cancelled", "cancelled_by_person")
    assert (run.attempts.count(), run.steps.count(), len(provider.books)) == (0, 0, 0)


def test_rc154_nothing_that_a_command_started_outlives_its_time(
    tmp_path: Path, settings: Any
) -> None:
    settings.LOOPWARDEN_ATTEMPT_SECONDS = 2
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    marked = "154.154"
    task = scenes.fix_task(repo, f"setsid sleep {marked} & sleep {marked} & wait", "true")
    run = scenes.step(task.runs.get())
    assert Step.objects.get(run=run, kind="check").result["timed_out"] is True  # type: ignore[index]
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in lines if marked.encode() in line]


def test_rc154_nothing_that_a_command_started_outlives_its_worker(
    log: Path, tmp_path: Path
) -> None:
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    marked = "154.155"
    scenes.fix_task(repo, f"setsid sleep {marked} & sleep {marked} & wait", "true")
    worker = Forked(log, forked.work)
    processes.until(lambda: len(_sleeping(marked)) == 2)
    worker.process.kill()
    worker.ended()
    processes.until(lambda: not _sleeping(marked), seconds=10)


def _sleeping(marked: str) -> list[Path]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has just ended
        if line == b"sleep\0" + marked.encode() + b"\0":
            found.append(process)
    return found


def test_rc156_a_broker_that_restarts_empty_costs_no_iteration_and_repeats_none(
    log: Path, tmp_path: Path
) -> None:
    """With real Celery workers: in the second of five rounds the broker goes away with its data."""
    book, began, go_on = tmp_path / "book", tmp_path / "began", tmp_path / "go"
    pause = f"if [ $(cat n) = 2 ]; then touch {began}; until [ -e {go_on} ]; do :; done; fi"
    fix = f"echo $(($(cat n) + 1)) > n; echo $(cat n) >> {book}; {pause}"
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    task = scenes.fix_task(repo, "test $(cat n) = 5", fix, iterations=6)
    with ValkeyServer(tmp_path / "broker") as broker:
        env = {"REDIS_URL": broker.url, "LOOPWARDEN_SANDBOX": "none"}
        with processes.worker(log, **env), processes.tender(log, **env):
            processes.until(began.exists)
            broker.stop()
            shutil.rmtree(tmp_path / "broker/valkey")
            broker.start()
            go_on.touch()
            run = processes.until(lambda: _ended(task.runs.get()))
    assert (run.status, run.iterations) == ("succeeded", 5)
    rounds = list(run.attempts.order_by("no").values_list("no", "claims"))
    assert rounds == [(no, 1) for no in range(1, 7)]
    assert book.read_text().split() == ["1", "2", "3", "4", "5"]


def _ended(run: Run) -> Run | None:
    return run if run.status in TERMINAL or run.status == "at_gate" else None


def test_rc158_a_frozen_worker_s_run_goes_on_and_its_late_answer_is_dropped(
    log: Path, tmp_path: Path, provider: MessagesServer
) -> None:
    run = counting(tmp_path / "repo")
    case = Disturbed(log, "answered", "stop")
    case.dies()
    case.time_passes()
    assert Forked(log, forked.sweep).ended() == 0
    run.refresh_from_db()
    # The status that others call interrupted: it waits for its next worker and needs no person.
    assert (run.status, run.attempt_no) == ("queued", 1)
    assert run.events.filter(kind="lease_expired").count() == 1
    case.others_work()
    before = rows_of(run)
    recorded = Step.objects.filter(run=run).order_by("pk").values_list("ended_at", "output")
    kept = list(recorded)
    case.comes_back()
    assert (rows_of(run), list(recorded)) == (before, kept)
    assert run.attempts.get(no=1).claims == 2
    assert len(provider.books) == CALLS + 1
    assert_ends_as_ever(run, provider, 1)


def test_rc160_an_output_above_the_cap_is_cut_and_the_small_ones_are_whole(tmp_path: Path) -> None:
    sizes = (OUTPUT_CAP * 24 // 10, 40, 200)
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    checks = [f"head -c {size} /dev/zero | tr '\\0' x" for size in sizes]
    task = scenes.fix_task(repo, checks[0], "true", spec={"checks": checks})
    run = scenes.drive(task.runs.get())
    outputs = [artifacts.get_text(step.output) for step in run.steps.order_by("seq")]
    assert run.status == "succeeded"
    assert outputs[1:] == ["x" * 40, "x" * 200]
    # Head and tail stay, and the text says what is missing between them.
    assert outputs[0].count("x") == OUTPUT_CAP
    assert f"\n[... {sizes[0] - OUTPUT_CAP} bytes left out ...]\n" in outputs[0]
