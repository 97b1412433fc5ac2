"""A plan that leads nowhere is stopped; a wait is no standstill (RC051, RC053, S2-34)."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from loops.core.contract import Outcome
from loops.patterns.plan_execute_review import Spec
from tests.loops.patterns.fakes import world
from tests.loops.patterns.plan_scenes import (
    FAILED,
    WORKED,
    FakeTools,
    Play,
    finding,
    parameters,
    plan,
    review,
    step,
)

NOT_READY = replace(WORKED, not_ready=True)
SIX = [step(id_) for id_ in "abcdef"]
DONE = review("accept", *(finding(id_, "met", "e1") for id_ in "abcdef"))


def looking(*outcomes: Any, reviewer: tuple[str, ...] = (DONE,), **spec: Any) -> Play:
    """Six steps that use the same tool, with these outcomes."""
    return Play(
        world({"planner": [plan(*SIX)], "reviewer": list(reviewer)}),
        tools=FakeTools(outcomes=deque(outcomes)),
        spec=Spec.model_validate({"goal": "Reach it."} | spec),
    )


def other(number: int) -> Any:
    return replace(WORKED, digest=str(number))


def test_rc051_the_same_use_with_the_same_result_stops_after_three() -> None:
    found = looking()
    found.go()
    assert (found.state.status, found.cause) == ("failed", "no_progress")
    assert len(found.tools.used) == 3
    assert found.state.why == (
        "The same was done again with the same result. Seen 3 times in a row."
        " The last was look in c."
    )


@pytest.mark.parametrize(
    ("outcomes", "used"),
    [
        pytest.param([other(n) for n in range(6)], 6, id="other-results"),
        pytest.param([WORKED, WORKED, other(1), WORKED, WORKED, other(1)], 6, id="not-in-a-row"),
        pytest.param([NOT_READY] * 6, 6, id="RC053-waiting"),
        pytest.param([WORKED, NOT_READY, WORKED, NOT_READY, WORKED], 5, id="waiting-in-between"),
        pytest.param([WORKED, FAILED, WORKED, FAILED, WORKED, FAILED], 6, id="other-status"),
    ],
)
def test_rc051_rc053_what_is_a_repetition(outcomes: list[Any], used: int) -> None:
    found = looking(*outcomes)
    assert (found.go().outcome is Outcome.SUCCESS) is (used == 6)
    assert len(found.tools.used) == used


def test_rc051_the_threshold_is_the_task_s_own_and_zero_is_never() -> None:
    assert looking(same_action_limit=0).go().outcome is Outcome.SUCCESS
    strict = looking(same_action_limit=2)
    strict.go()
    assert (strict.cause, len(strict.tools.used)) == ("no_progress", 2)


def test_rc051_after_a_person_let_it_go_on_the_count_starts_anew() -> None:
    found = looking()
    found.world.agents.replies["planner"].append(
        plan(*(step(f"n{id_}", acceptanceCriteria=[f"{id_}.txt exists"]) for id_ in "def"))
    )
    found.go()
    assert found.cause == "no_progress"
    assert found.say("continue", "Look elsewhere.").outcome is Outcome.SUCCESS
    assert len(found.tools.used) == 6


def test_rc051_what_a_person_approves_each_time_is_no_repetition() -> None:
    steps = [step(id_, tool="pay", risk="high_impact") for id_ in "abcdef"]
    found = Play(
        world(
            {
                "planner": [plan(*steps)],
                "executor": [parameters(path="x")] * 6,
                "reviewer": [DONE],
            }
        )
    )
    found.go()
    for _ in range(6):
        assert found.cause == "approval"
        found.say("approve")
    assert found.result is not None
    assert found.result.outcome is Outcome.SUCCESS


def rounds(changes: str, **spec: Any) -> Play:
    """A step and a review per letter; the letter is what the workspace is after it.

    Each review asks for something else.
    """
    fixes = [
        plan(step(f"s{number}", acceptanceCriteria=["a.txt exists"]))
        for number, _ in enumerate(changes)
    ]
    reviews = [
        review("revise", finding("a", "not_met", fix=f"Do {number}."))
        for number, _ in enumerate(changes)
    ]
    made = world({"planner": [plan(step("a"))], "reviser": fixes[1:], "reviewer": reviews})
    left = deque(changes)

    class Changing(FakeTools):
        def use(self, use: Any, *, approved: str = "") -> Any:
            made.workspace.version = ord(left.popleft())
            return super().use(use, approved=approved)

    given = {"goal": "Reach it.", "same_action_limit": 0, "max_revisions": len(changes) - 1}
    return Play(made, tools=Changing(), spec=Spec.model_validate(given | spec))


@pytest.mark.parametrize(
    ("changes", "spec", "cause"),
    [
        ("AAA", {"max_revisions": 9}, "spend_without_change"),
        ("AAAA", {"max_revisions": 9, "idle_limit": 3}, "spend_without_change"),
        ("ABAB", {"max_revisions": 9}, "back_and_forth"),
        ("ABCDE", {}, "revisions"),
        ("AAA", {"idle_limit": 0}, "revisions"),
        ("ABABA", {"return_limit": 0}, "revisions"),
    ],
)
def test_rounds_that_lead_nowhere_stop_it(changes: str, spec: dict[str, Any], cause: str) -> None:
    found = rounds(changes, **spec)
    found.go()
    assert (found.state.status, found.cause) == ("failed", cause)
    assert len(found.tools.used) == len(changes)


def test_s2_34_how_often_a_finding_may_come_back_is_the_task_s_own() -> None:
    open_ = review("revise", finding("a", "not_met", fix="Write it."))
    fixes = [plan(step(id_, acceptanceCriteria=["a.txt exists"])) for id_ in "cde"]
    found = Play(
        world({"planner": [plan(step("a"))], "reviser": fixes, "reviewer": [open_] * 3}),
        tools=FakeTools(outcomes=deque(other(n) for n in range(4))),
        spec=Spec(goal="Reach it.", same_finding_limit=3),
    )
    found.go()
    assert (found.cause, found.state.revision) == ("repeated_finding", 2)
    assert "Seen 3 times in a row. a.txt exists: not met. Write it." in found.state.why
