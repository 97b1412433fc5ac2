"""Approvals, questions and doubts of a plan, on the page and over the API (S2-9, S2-16, S2-18)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from loops.core.lifecycle import RunStatus, StopReason
from loops.core.plan_states import PlanStatus
from loops.core.tooling import action_digest
from loops.models import Escalation, Project
from tests.dashboard.test_gate import send
from tests.dashboard.test_pages import text_of
from tests.factories import add_attempt, make_item, make_run

PARAMETERS = {"account": "<b>DE00</b>", "amount": 12}
ACTION = {
    "step": "s1",
    "tool": "pay",
    "objective": "Pay the invoice.",
    "parameters": PARAMETERS,
    "sha256": action_digest("pay", PARAMETERS),
}


@pytest.fixture
def desk(bob: User) -> Client:
    """Bob's browser."""
    client = Client()
    client.force_login(bob)
    return client


def asking(project: Project, cause: StopReason, allowed: list[str], **asks: Any) -> Escalation:
    run = make_run(project, status=RunStatus.AT_GATE, stop_reason=cause)
    packet = {"why": "because", "asks": {"ticket": 1, "questions": [], **asks}}
    return make_item(run, cause=cause, allowed=allowed, packet=packet)


@pytest.fixture
def approval(project: Project) -> Escalation:
    """A payment that waits."""
    allowed = ["approve", "reject", "close"]
    return asking(project, StopReason.APPROVAL, allowed, action=ACTION)


def test_s2_16_the_page_shows_exactly_what_would_run(desk: Client, approval: Escalation) -> None:
    page = desk.get(f"/gate/{approval.pk}/").content.decode()
    read = text_of(page)
    for words in (
        "What would run, exactly this",
        "pay Pay the invoice.",
        '"amount": 12',
        ACTION["sha256"],
        "Approve exactly this",
        "Reject",
        "To reject it: why, and what to do instead",
    ):
        assert words in read, words
    assert "<b>DE00" not in page
    assert "Accept as it is" not in read
    assert "Continue with guidance" not in read


def test_s2_19_no_page_calls_a_plan_right(desk: Client, approval: Escalation) -> None:
    """A plan that passed its validation keeps to the rules; whether it is right nobody knows."""
    add_attempt(approval.run, 1, "executing")
    for address in (f"/gate/{approval.pk}/", f"/tasks/{approval.run.task_id}/"):
        read = text_of(desk.get(address).content.decode())
        assert "executing" in read or "What would run" in read
        assert not re.search(r"\b(correct|right|proven|verified|sound|safe)\b", read, re.IGNORECASE)
    for status in PlanStatus:
        assert not re.search("valid$|correct|right|verified", status)


def test_s2_09_an_approval_on_the_page_queues_the_run(desk: Client, approval: Escalation) -> None:
    assert send(desk, approval, decision="approve").status_code == 302
    approval.refresh_from_db()
    run = approval.run
    run.refresh_from_db()
    assert (approval.decision, approval.granted_iterations) == ("approve", 0)
    assert (run.status, run.limit_iterations) == ("queued", 6)
    assert run.events.latest("seq").text == "bob decided: approve"
    assert send(desk, approval, decision="approve").status_code == 409


def test_rc138_a_rejection_without_words_is_sent_back(desk: Client, approval: Escalation) -> None:
    answer = send(desk, approval, decision="reject")
    assert answer.status_code == 400
    assert "Say it in words" in text_of(answer.content.decode())
    assert send(desk, approval, decision="reject", guidance="No.").status_code == 302


def test_s2_39_nothing_else_can_be_decided(desk: Client, approval: Escalation) -> None:
    for other in ("accept", "continue", "happened", "answer"):
        assert send(desk, approval, decision=other, guidance="x").status_code == 400
    approval.refresh_from_db()
    assert approval.status == "open"


def test_s2_18_questions_are_listed_and_answered(desk: Client, project: Project) -> None:
    item = asking(project, StopReason.INPUT, ["answer", "close"], questions=["Only Linux?"])
    read = text_of(desk.get(f"/gate/{item.pk}/").content.decode())
    assert "What it asks" in read
    assert "Only Linux?" in read
    assert "Your answer" in read
    assert send(desk, item, decision="answer", guidance=" ").status_code == 400
    assert send(desk, item, decision="answer", guidance="Yes.").status_code == 302


@pytest.mark.parametrize("decision", ["happened", "not_happened"])
def test_s2_26_a_doubt_is_reconciled_by_a_person(
    desk: Client, project: Project, decision: str
) -> None:
    allowed = ["happened", "not_happened", "close"]
    item = asking(project, StopReason.OUTCOME_UNKNOWN, allowed, action=ACTION)
    read = text_of(desk.get(f"/gate/{item.pk}/").content.decode())
    assert "The action in doubt" in read
    assert "It did not happen" in read
    assert send(desk, item, decision=decision).status_code == 302
    item.run.refresh_from_db()
    assert item.run.status == "queued"


def test_s2_09_the_api_shows_and_decides_the_same(
    approval: Escalation, bearer: dict[str, str]
) -> None:
    client = Client(**bearer)  # type: ignore[arg-type]
    url = f"/api/v1/escalations/{approval.pk}"
    shown = client.get(url).json()
    assert shown["allowed"] == ["approve", "reject", "close"]
    assert shown["packet"]["asks"]["action"] == ACTION
    body = {"decision": "approve", "digest": shown["digest"]}
    sent = client.post(f"{url}/decision", json.dumps(body), content_type="application/json")
    assert (sent.status_code, sent.json()["decision"]["decision"]) == (200, "approve")
    again = client.post(f"{url}/decision", json.dumps(body), content_type="application/json")
    assert again.status_code == 409
