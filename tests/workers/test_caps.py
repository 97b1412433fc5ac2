"""A concurrency cap holds whenever Redis loses everything; the model server counts for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now

from loops import crashpoints, feed
from loops.models import AgentProfile, Run
from tests.engine import processes, rows, scenes
from tests.messages_server import Answer, MessagesServer, Request, says
from workers import dispatch
from workers.agents import connections
from workers.intake import TaskRequest, accept
from workers.iteration import run_iteration

pytestmark = pytest.mark.django_db(transaction=True)

POINTS = ["acquired", "admitted", "published", "claimed", "begun", "reserved", "sent", "answered"]


class Counting(MessagesServer):
    """Knows how many requests are with it at once, and keeps those of `held` until `let_go`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.arrived, self.let_go = threading.Event(), threading.Event()
        self.held = "nobody"
        self._count = threading.Lock()

    def next_answer(self, request: Request) -> Answer:
        """A block of code for everybody; answers of the held model wait."""
        with self._count:
            self.now += 1
            self.peak = max(self.peak, self.now)
        if request.body["model"] == self.held:
            self.arrived.set()
            self.let_go.wait(60)
        with self._count:
            self.now -= 1
        return says("done")


@pytest.fixture
def server() -> Iterator[Counting]:
    with Counting() as running:
        yield running
        running.let_go.set()
        connections.close_clients()


def _asks(server: MessagesServer, name: str, **facts: Any) -> Run:
    """A run of one model call; each has a profile of its own, the slots are the pool's."""
    AgentProfile.objects.create(
        name=name,
        provider="anthropic",
        config={"model": name, "base_url": server.url, "key_env": ""},
    )
    task = accept(
        TaskRequest(
            pattern="one_pass",
            title=name,
            spec={"prompt": "Say it."},
            limits={"iterations": 1},
            agents={"worker": name},
            **facts,
        ),
        project=scenes.project(),
        user=None,
    )
    return task.runs.get()


def _work_off(run: Run) -> None:
    dispatch.run_pass()
    run.refresh_from_db()
    if run.admitted_at is not None:
        run_iteration(run.pk, run.attempt_no, worker=f"worker of {run.pk}")


def _beside(act: Callable[[], None]) -> threading.Thread:
    def work() -> None:
        try:
            act()
        finally:
            connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("point", POINTS)
def test_a_flush_anywhere_never_lets_two_work_at_once(
    point: str, server: Counting, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the point Redis is emptied, and another dispatcher and worker do all that they can."""
    settings.LOOPWARDEN_SLOTS = 1
    server.held = "second"
    first = _asks(server, "first")
    second = rows.change(_asks(server, "second", priority=5), next_at=Now() + rows.AGO * 100)
    others: list[threading.Thread] = []

    def lose_everything() -> None:
        feed.client().flushall()
        Run.objects.filter(pk=second.pk).update(next_at=Now())
        others.append(_beside(lambda: _work_off(second)))
        processes.until(lambda: server.arrived.is_set() or not others[0].is_alive())
        feed.client().flushall()

    monkeypatch.setitem(crashpoints._MODES, "raise", lose_everything)
    monkeypatch.setenv("LOOPWARDEN_CRASHPOINT", f"{point}:raise@{tmp_path / 'reached'}")
    _work_off(first)
    assert (tmp_path / "reached").exists()
    server.let_go.set()
    others[0].join(60)
    assert server.peak == 1
    for run in (first, second):
        assert scenes.drive(run).status == "succeeded"
    assert server.peak == 1


def test_threads_and_flushes_in_between_never_exceed_the_cap(
    server: Counting, settings: Any
) -> None:
    settings.LOOPWARDEN_SLOTS = 2
    runs = [_asks(server, f"model-{number}") for number in range(8)]

    def work(number: int) -> None:
        run = Run.objects.get(pk=runs[number].pk)
        while run.status == "queued":
            if number % 3 == 0:
                feed.client().flushall()
            _work_off(run)
            run.refresh_from_db()

    answers = rows.together(8, work)
    assert answers == [None] * 8
    assert server.peak <= 2
    assert {Run.objects.get(pk=run.pk).status for run in runs} == {"succeeded"}
