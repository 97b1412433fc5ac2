"""The gate in the browser without JavaScript: one decision, on exactly what was shown."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from loops import gates
from loops.core.lifecycle import RunStatus
from loops.models import Escalation, LimitGrant, Project
from loops.store import artifacts
from tests.dashboard.test_pages import text_of
from tests.factories import PATCH, add_attempt, make_item, make_run


@pytest.fixture
def item(project: Project, alice: User) -> Escalation:
    """A run that has used its three rounds."""
    run = make_run(project, user=alice, status=RunStatus.AT_GATE, limit_iterations=3, iterations=3)
    for no in (1, 2, 3):
        add_attempt(run, no, "changes requested")
    return make_item(run)


@pytest.fixture
def desk(bob: User) -> Client:
    """Bob's browser."""
    client = Client()
    client.force_login(bob)
    return client


def send(client: Client, item: Escalation, **typed: Any) -> Any:
    """Post a decision as the form does."""
    body = {"digest": item.digest, "decision": "continue", "guidance": "", "iterations": "2"}
    return client.post(f"/gate/{item.pk}/", {**body, **typed})


def test_the_item_shows_why_reasons_spend_and_digest(desk: Client, item: Escalation) -> None:
    read = text_of(desk.get("/gate/").content.decode())
    for words in (
        "1 waiting",
        "Round cap reached",
        "Why it is here. All 3 allowed iterations are used without success.",
        "No test covers a write during the migration.",
        "$1.12",
        "96k",
        "18 min",
        f"{item.digest[:4]}…{item.digest[-4:]}",
        "Continue with guidance",
        "Accept as it is",
        "Close without result",
    ):
        assert words in read, words


def test_the_item_shows_diff_code_checks_and_hook(desk: Client, project: Project) -> None:
    run = make_run(project, status=RunStatus.AT_GATE)
    item = make_item(
        run,
        packet={
            "why": "because",
            "patch": artifacts.put(PATCH),
            "code": "def f(): ...",
            "checks": [
                {"name": "test", "command": "pytest", "exit_code": 1, "tail": "1 failed"},
                {"name": "slow", "command": "sleep 9", "exit_code": None, "tail": ""},
            ],
            "hook": {"passed": False, "tail": "commit message too short"},
        },
    )
    read = text_of(desk.get(f"/gate/{item.pk}/").content.decode())
    for words in (
        "self._bus.unsubscribe(token)",
        "def f(): ...",
        "exit code 1",
        "1 failed",
        "did not finish",
        "commit hook refused",
        "commit message too short",
    ):
        assert words in read, words


def test_a_packet_with_nothing_but_a_cause_still_shows(desk: Client, project: Project) -> None:
    run = make_run(project, status=RunStatus.AT_GATE)
    item = make_item(run, packet={"why": "The worker died.", "cause": "worker_lost", "attempt": 2})
    assert "The worker died." in desk.get(f"/gate/{item.pk}/").content.decode()


def test_only_what_is_allowed_is_offered(desk: Client, item: Escalation) -> None:
    Escalation.objects.update(allowed=["close"])
    read = text_of(desk.get(f"/gate/{item.pk}/").content.decode())
    assert "Accept as it is" not in read
    assert "Guidance" not in read
    assert send(desk, item, decision="accept").status_code == 400


def test_continue_grants_rounds_and_says_so(desk: Client, item: Escalation) -> None:
    response = send(desk, item, guidance="Use batches.", iterations="3")
    assert response.status_code == 302
    read = text_of(desk.get(response["Location"]).content.decode())
    assert "Continue with guidance. Decided by bob" in read
    assert "3 more rounds granted. The run is now: Queued" in read
    assert "Close without result" not in read
    item.run.refresh_from_db()
    assert (item.run.status, item.run.limit_iterations) == (RunStatus.QUEUED, 6)


@pytest.mark.parametrize(
    ("decision", "status", "words"),
    [
        ("accept", RunStatus.SUCCEEDED, "Accepted by a person"),
        ("close", RunStatus.ESCALATED, "Closed"),
    ],
)
def test_accept_and_close_end_the_run(
    desk: Client, item: Escalation, decision: str, status: RunStatus, words: str
) -> None:
    send(desk, item, decision=decision)
    item.run.refresh_from_db()
    assert item.run.status == status
    assert f"The run is now: {words}" in text_of(desk.get(f"/gate/{item.pk}/").content.decode())


def test_a_wrong_field_is_named_and_nothing_typed_is_lost(desk: Client, item: Escalation) -> None:
    response = send(desk, item, guidance="Keep me", iterations="0")
    html = response.content.decode()
    assert response.status_code == 400
    assert 'id="iterations-wrong">must be between 1 and 100.' in html
    assert "Keep me</textarea>" in html
    response = send(desk, item, guidance="  ")
    assert 'id="guidance-wrong">say what the next round should do differently.' in (
        response.content.decode()
    )


def test_the_second_decision_is_refused_and_changes_nothing(
    desk: Client, pages: Client, item: Escalation
) -> None:
    """RC142: a 409 with a plain sentence, executed once."""
    assert send(desk, item, guidance="Use batches.").status_code == 302
    response = send(pages, item, decision="continue", guidance="My own words")
    read = text_of(response.content.decode())
    assert response.status_code == 409
    assert "Not carried out. bob was first: continue with guidance." in read
    assert "My own words" in read
    assert LimitGrant.objects.filter(run=item.run).count() == 1
    again = send(desk, item, decision="accept")
    assert again.status_code == 409


def test_a_decision_on_what_was_not_shown_is_refused(desk: Client, item: Escalation) -> None:
    response = send(desk, item, digest="0" * 64, guidance="Typed before it changed")
    assert response.status_code == 409
    assert "What you saw has changed since." in response.content.decode()
    assert "Typed before it changed</textarea>" in response.content.decode()
    item.refresh_from_db()
    assert item.status == "open"


def test_a_cancelled_run_withdraws_its_item(desk: Client, pages: Client, item: Escalation) -> None:
    pages.post(f"/tasks/{item.run.task_id}/cancel/")
    gates.withdraw(item.run_id)
    assert "Not open any more." in desk.get(f"/gate/{item.pk}/").content.decode()
    assert send(desk, item, decision="accept").status_code == 409


def test_badge_and_page_count_the_same(desk: Client, project: Project) -> None:
    for _ in range(3):
        make_item(make_run(project, status=RunStatus.AT_GATE))
    html = desk.get("/gate/").content.decode()
    assert 'title="waiting for a person">3</span>' in html
    assert "3 waiting" in html
    assert html.count('id="item-') == 3


def test_nothing_waits_is_said_only_after_a_good_read(
    desk: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Nothing waits for you" in desk.get("/gate/").content.decode()

    def broken(*_args: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("dashboard.views.gate.open_items", broken)
    desk.raise_request_exception = False
    assert "Nothing waits" not in desk.get("/gate/").content.decode()


@pytest.mark.django_db(transaction=True)
def test_of_two_decisions_at_once_one_is_carried_out(
    item: Escalation, alice: User, bob: User
) -> None:
    start, codes = threading.Barrier(2), []

    def decide(user: User, decision: str) -> None:
        client = Client()
        client.force_login(user)
        start.wait()
        codes.append(send(client, item, decision=decision).status_code)
        connection.close()

    threads = [
        threading.Thread(target=decide, args=who) for who in ((alice, "accept"), (bob, "close"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [302, 409]
