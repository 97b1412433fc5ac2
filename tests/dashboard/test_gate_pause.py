"""A pause after an attempt: strategy and feedback are shown, and a person may decide otherwise."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from loops.core.lifecycle import RunStatus
from loops.models import Escalation, LimitGrant, Project
from tests.dashboard.test_pages import text_of
from tests.factories import add_attempt, make_item, make_run


@pytest.fixture
def item(project: Project, alice: User) -> Escalation:
    """The reviewer said refactor in round 1 of 3."""
    run = make_run(
        project,
        user=alice,
        status=RunStatus.AT_GATE,
        limit_iterations=3,
        iterations=1,
        feedback="use the event bus",
    )
    add_attempt(run, 1, "refactor")
    return make_item(
        run,
        cause="yield",
        packet={
            "why": "It waits for a person after each attempt.",
            "feedback": "use the event bus",
        },
        allowed=["continue", "refactor", "accept", "close"],
        model_said="refactor",
    )


def send(client: Client, item: Escalation, **typed: Any) -> Any:
    return client.post(f"/gate/{item.pk}/", {"digest": item.digest, **typed})


def test_s4_14_the_pause_shows_strategy_and_feedback_to_edit(
    pages: Client, item: Escalation
) -> None:
    page = pages.get(f"/gate/{item.pk}/").content.decode()
    read = text_of(page)
    for words in (
        "Paused for you",
        "The last attempt was judged: refactor",
        "Continue, keep the work",
        "Undo this attempt and start over",
        "Accept as it is",
        "Close without result",
    ):
        assert words in read, words
    assert re.search(r"<textarea[^>]*name=\"guidance\"[^>]*>use the event bus</textarea>", page)
    assert 'name="iterations"' not in page


def test_s4_14_an_override_costs_no_grant_and_is_kept_as_a_label(
    pages: Client, item: Escalation, bearer: dict[str, str]
) -> None:
    answer = send(pages, item, decision="continue", guidance="keep it, rename it")
    assert answer.status_code == 302
    read = text_of(pages.get(answer["Location"]).content.decode())
    assert "The loop had said: refactor" in read
    item.run.refresh_from_db()
    assert (item.run.status, item.run.limit_iterations) == ("queued", 3)
    assert item.run.feedback == "keep it, rename it"
    assert not LimitGrant.objects.filter(iterations=2).exists()
    shape = pages.get(f"/api/v1/escalations/{item.pk}", **bearer).json()
    assert shape["model_said"] == "refactor"
    assert shape["decision"]["overrides"] is True


def test_s4_14_undo_without_a_word_keeps_the_feedback(pages: Client, item: Escalation) -> None:
    send(pages, item, decision="refactor", guidance=" ")
    item.refresh_from_db()
    item.run.refresh_from_db()
    assert (item.decision, item.overrides) == ("refactor", False)
    assert (item.run.status, item.run.feedback) == ("queued", "use the event bus")
    event = item.run.events.order_by("seq").last()
    assert event is not None
    assert event.text == "alice had the attempt undone with the feedback as it was"


def test_undo_at_the_cap_needs_guidance_and_grants_rounds(pages: Client, item: Escalation) -> None:
    Escalation.objects.update(cause="iterations")
    assert send(pages, item, decision="refactor", iterations="2").status_code == 400
    send(pages, item, decision="refactor", guidance="Use the bus.", iterations="2")
    item.run.refresh_from_db()
    assert item.run.limit_iterations == 5
    assert item.run.feedback == "Use the bus.\n\nuse the event bus"
