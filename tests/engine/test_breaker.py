"""An overloaded provider is left alone: real 429 and 529 answers over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db.models.functions import Now
from django.utils import timezone

from loops import admission
from loops.models import AgentProfile, Run
from tests.engine import rows, scenes
from tests.messages_server import Answer, MessagesServer, fails, says
from workers import breaker, dispatch
from workers.agents import connections
from workers.intake import TaskRequest, accept
from workers.iteration import run_iteration

pytestmark = pytest.mark.django_db(transaction=True)

BUSY = fails(529, "overloaded_error", headers={"retry-after": "40"})
LIMITED = fails(429, "rate_limit_error")


@pytest.fixture(autouse=True)
def _no_connection_is_left() -> Iterator[None]:
    yield
    connections.close_clients()


def _profile(server: MessagesServer, name: str) -> AgentProfile:
    config = {"model": name, "base_url": server.url, "key_env": ""}
    return AgentProfile.objects.create(name=name, provider="anthropic", config=config)


def _run(agent: str, reviewer: str = "", **limits: int) -> Run:
    pattern, agents = "one_pass", {"worker": agent}
    spec: dict[str, Any] = {"prompt": "Say it."}
    if reviewer:
        pattern, agents = "coder_reviewer", {"coder": agent, "reviewer": reviewer}
        spec = {"task": "Write it."}
    request = TaskRequest(
        pattern=pattern, title=agent, spec=spec, limits={"iterations": 1, **limits}, agents=agents
    )
    return accept(request, project=scenes.project(), user=None).runs.get()


def _slow() -> AgentProfile:
    return AgentProfile.objects.get(name="slow")


def _trip(*answers: Answer) -> list[Run]:
    """Three runs whose calls were answered so; their profile rests now."""
    with MessagesServer(*answers) as server:
        _profile(server, "slow")
        return [scenes.step(_run("slow")) for _ in answers]


def _rest_is_over() -> None:
    AgentProfile.objects.update(resting_until=Now() - rows.AGO)
    Run.objects.filter(status="queued").update(next_at=Now() - rows.AGO)


def test_after_three_overloads_in_a_row_nobody_who_needs_it_is_admitted() -> None:
    waiting = _trip(BUSY, LIMITED, BUSY)
    rest = _slow().resting_until
    assert rest is not None
    assert timedelta(seconds=30) < rest - timezone.now() <= timedelta(seconds=40)
    Run.objects.update(next_at=Now() - rows.AGO)
    with MessagesServer(says("done")) as server:
        _profile(server, "fine")
        other = _run("fine")
        assert dispatch.admit_waiting() == 1
        other.refresh_from_db()
        assert other.admitted_at is not None
    for run in waiting:
        run.refresh_from_db()
        assert (run.status, run.errors, run.iterations, run.attempt_no) == ("queued", 0, 0, 1)
        assert run.admitted_at is None
        assert run.used.model_calls == 1
        assert run.events.filter(kind=breaker.EVENT, text__contains="slow is busy").count() == 1
        assert "slow rests until" in admission.why_waiting(run)


def test_two_overloads_or_a_success_between_them_are_no_reason_to_rest() -> None:
    with MessagesServer(BUSY, LIMITED, says("done"), BUSY, LIMITED) as server:
        _profile(server, "slow")
        runs = [scenes.step(_run("slow")) for _ in range(5)]
    assert runs[2].status == "succeeded"
    assert (_slow().strikes, _slow().resting_until) == (2, None)


def test_after_the_rest_one_run_tries_and_its_success_lets_all_go() -> None:
    waiting = _trip(BUSY, BUSY, BUSY)
    _rest_is_over()
    assert dispatch.admit_waiting() == 1
    with MessagesServer(*[says("done")] * 3) as server:
        AgentProfile.objects.update(config={"model": "slow", "base_url": server.url, "key_env": ""})
        trial = Run.objects.get(admitted_at__isnull=False)
        run_iteration(trial.pk, trial.attempt_no, worker="worker-1")
        assert (_slow().strikes, _slow().resting_until) == (0, None)
        assert Run.objects.filter(admitted_at__isnull=False).count() == 2
        assert {scenes.drive(run).status for run in waiting} == {"succeeded"}
        assert len(server.messages) == 3


def test_each_failed_trial_doubles_the_rest_up_to_its_cap(settings: Any) -> None:
    settings.LOOPWARDEN_RETRY_SECONDS = 3
    rests = []
    with MessagesServer(*[LIMITED] * 6) as server:
        _profile(server, "slow")
        run = _run("slow")
        for _ in range(6):
            _rest_is_over()
            began = timezone.now()
            scenes.step(run)
            rests.append((began, _slow().resting_until, timezone.now()))
    clock = timedelta(milliseconds=5)
    for (began, until, ended), seconds in zip(rests[2:], [1, 2, 3, 3], strict=True):
        assert until is not None
        assert began - clock <= until - timedelta(seconds=seconds) <= ended + clock


def test_no_answer_that_was_under_way_lengthens_the_rest() -> None:
    _trip(BUSY, BUSY, BUSY)
    until = _slow().resting_until
    run, fault = rows.queued(), breaker.AgentFault("late")
    breaker.struck(run, _slow(), fault)
    assert (_slow().strikes, _slow().resting_until) == (3, until)


def test_a_success_older_than_the_last_strike_ends_no_rest() -> None:
    with MessagesServer() as server:
        _profile(server, "slow")
    AgentProfile.objects.update(strikes=2)
    early = _slow()
    AgentProfile.objects.update(strikes=3, resting_until=Now() + rows.AGO * 10)
    breaker.succeeded(early)
    assert (_slow().strikes, admission.rests(_slow())) == (3, True)


def test_what_was_admitted_before_the_rest_is_handed_back_and_holds_nothing() -> None:
    with MessagesServer(says("done")) as server:
        _profile(server, "slow")
        run = _run("slow")
        assert dispatch.admit_waiting() == 1
        AgentProfile.objects.update(strikes=3, resting_until=Now() + rows.AGO * 10)
        run_iteration(run.pk, 1, worker="worker-1")
        assert server.messages == []
    run.refresh_from_db()
    assert (run.status, run.attempts.get().claims, run.admitted_at) == ("queued", 0, None)
    assert dispatch.admit_waiting() == 0


def test_an_overloaded_reviewer_costs_no_second_call_of_the_coder() -> None:
    answers = [says(scenes.code("one")), LIMITED, says(scenes.APPROVED)]
    with MessagesServer(*answers) as server:
        for name in ("coder", "reviewer"):
            _profile(server, name)
        run = scenes.drive(_run("coder", "reviewer"))
        assert len(server.messages) == 3
    assert (run.status, run.iterations, run.errors, run.used.model_calls) == ("succeeded", 1, 0, 3)


def test_a_run_that_is_always_answered_so_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(breaker, "MOST_OVERLOADS", 3)
    with MessagesServer(*[LIMITED] * 12) as server:
        _profile(server, "slow")
        run = _run("slow", errors=2)
        for _ in range(12):
            _rest_is_over()
            run.refresh_from_db()
            if run.status == "queued":
                scenes.step(run)
        run.refresh_from_db()
        assert len(server.messages) == 3 + 3
    assert (run.stop_reason, run.errors) == ("errors", 3)


def test_the_command_line_shows_who_rests_and_setting_it_ends_the_rest() -> None:
    _trip(BUSY, BUSY, BUSY)
    shown = StringIO()
    call_command("agent", "list", stdout=shown)
    assert "slow  anthropic" in shown.getvalue()
    assert "rests until" in shown.getvalue()
    assert "HTTP 529" in shown.getvalue()
    AgentProfile.objects.update(resting_until=Now() - rows.AGO)
    shown = StringIO()
    call_command("agent", "list", stdout=shown)
    assert "one run tries for all" in shown.getvalue()
    call_command("agent", "set", "slow", "anthropic", "--config", '{"model": "m"}', stdout=shown)
    assert (_slow().strikes, admission.rests(_slow())) == (0, False)


def test_a_run_without_a_rest_says_what_it_waits_for(settings: Any) -> None:
    settings.LOOPWARDEN_SLOTS = 1
    project = scenes.project("p", max_running=4)
    scenes.agent("hand", "coder", max_running=1)
    holder = rows.queued("p", agents={"coder": "hand"})
    waiting = rows.queued("p", agents={"coder": "hand"})
    say = admission.why_waiting
    assert "its turn" in say(waiting)
    assert dispatch.admit_waiting() == 1
    assert say(rows.change(holder)) == "It waits for a worker."
    assert say(waiting) == "It waits for a free slot: the agent hand has 1 of 1 in use."
    AgentProfile.objects.update(max_running=9)
    assert say(waiting) == "It waits for a free slot: the whole pool has 1 of 1 in use."
    project.max_running = 1
    project.save()
    waiting = Run.objects.select_related("task__project").get(pk=waiting.pk)
    assert say(waiting) == "It waits for a free slot: the project p has 1 of 1 in use."
    later = rows.change(waiting, next_at=timezone.now() + rows.AGO * 20)
    assert say(later) == f"It waits until {later.next_at:%H:%M:%S} UTC."
    assert say(rows.change(holder, status="at_gate")) == ""
