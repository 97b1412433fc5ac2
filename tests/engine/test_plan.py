"""plan_execute_review on real rows, tools and people (S2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loops.core.tooling import action_digest
from loops.gates import BadDecision, NotPossibleNow
from loops.models import Escalation, Reservation, Run, Step
from loops.store import artifacts
from tests.engine import scenes
from tests.engine.plan_tasks import ACCEPT, TOOLS, decide, open_item, paying, plan_task
from tests.loops.patterns.plan_scenes import finding, parameters, plan, review, step
from workers.intake import TaskRequest, accept

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _tools(settings: Any) -> None:
    settings.LOOPWARDEN_TOOLS = TOOLS


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return tmp_path / "book"


def lines(book: Path) -> list[str]:
    return book.read_text().splitlines() if book.exists() else []


def test_s2_41_s2_42_a_plan_changes_a_repository_and_delivers_the_change(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", **{"a.txt": "old\n"})
    writes = step("a", tool="write_file", risk="reversible_write")
    task = plan_task(
        [plan(step("look", tool="read_file"), {**writes, "dependsOn": ["look"]})],
        [review("accept", finding("look", "met", "e1"), finding("a", "met", "e2"))],
        executor=[parameters(path="a.txt"), parameters(path="a.txt", content="new\n")],
        repo=repo,
        spec={"checks": ["grep new a.txt"]},
    )
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason) == ("succeeded", "accepted")
    assert run.result is not None
    assert b"+new" in artifacts.get(run.result["patch"])
    assert [a.label for a in run.attempts.order_by("no")][-1] == "accepted"
    seen = Step.objects.get(run=run, role="reviewer")
    assert "+new" in artifacts.get_text(seen.prompt)
    assert run.used.tool_calls == 3


def test_s2_22_s2_25_a_tool_call_is_a_step_with_its_reservation_key_and_artifact(
    book: Path,
) -> None:
    run = scenes.drive(paying(book, tool="transfer").runs.get())
    assert run.status == "succeeded"
    used = Step.objects.get(run=run, kind="tool_call")
    assert artifacts.get_text(used.output) == "paid"
    assert lines(book) == [f"lw-{run.pk}-1-a 12"]
    reserved = Reservation.objects.get(run=run, attempt_no=used.attempt_no, seq=used.seq)
    assert (reserved.est_tool_calls, reserved.state) == (1, "settled")
    assert run.state is not None
    (result,) = run.state["results"]
    assert result["evidence"][0]["digest"] == used.output
    assert result["tool_call_id"] == f"lw-{run.pk}-1-a"


def test_s2_23_nothing_is_paid_before_the_approval_and_once_after_it(book: Path) -> None:
    run = scenes.drive(paying(book).runs.get())
    item = open_item(run)
    assert (run.status, item.cause, lines(book)) == ("at_gate", "approval", [])
    assert item.allowed == ["approve", "reject", "close"]
    shown = item.packet["asks"]["action"]
    given = {"book": str(book), "amount": 12}
    assert (shown["tool"], shown["parameters"]) == ("pay", given)
    assert shown["sha256"] == action_digest("pay", given)
    decide(run, "approve")
    run = scenes.drive(run)
    assert (run.status, len(lines(book))) == ("succeeded", 1)
    assert Step.objects.filter(run=run, role="executor").count() == 1


def test_rc132_s2_09_changed_parameters_after_the_approval_open_a_new_gate(book: Path) -> None:
    run = scenes.drive(paying(book).runs.get())
    decide(run, "approve")
    run.refresh_from_db()
    assert run.state is not None
    run.state["action"]["parameters"]["amount"] = 120
    Run.objects.filter(pk=run.pk).update(state=run.state)
    run = scenes.drive(run)
    item = open_item(run)
    assert (run.status, item.cause, lines(book)) == ("at_gate", "approval", [])
    assert item.packet["asks"]["action"]["parameters"]["amount"] == 120
    assert Escalation.objects.filter(run=run).count() == 2


def test_s2_39_an_approval_is_bound_to_what_was_shown_and_used_once(book: Path) -> None:
    run = scenes.drive(paying(book).runs.get())
    with pytest.raises(NotPossibleNow, match="has changed"):
        decide(run, "approve", digest="0" * 64)
    with pytest.raises(BadDecision, match="must be one of: approve, reject, close"):
        decide(run, "accept")
    item = decide(run, "approve")
    with pytest.raises(Escalation.DoesNotExist):
        decide(run, "approve")
    assert item.granted_iterations == 0
    run = scenes.drive(run)
    assert len(lines(book)) == 1


def test_rc138_a_rejection_needs_words_and_they_reach_the_reviser(book: Path) -> None:
    task = plan_task(
        [plan(step("a", tool="pay", risk="high_impact"))],
        [ACCEPT],
        executor=[parameters(book=str(book), amount=1), "The text."],
        reviser=[plan(step("c", tool=None, acceptanceCriteria=["a.txt exists"]))],
        spec={"tools": ["pay"]},
    )
    run = scenes.drive(task.runs.get())
    with pytest.raises(BadDecision, match="in words"):
        decide(run, "reject", " ")
    decide(run, "reject", "Use the event bus; keep the public API.")
    run = scenes.drive(run)
    assert (run.status, lines(book)) == ("succeeded", [])
    asked = Step.objects.get(run=run, role="reviser")
    assert "Use the event bus; keep the public API." in artifacts.get_text(asked.prompt)


def test_s2_26_a_write_that_times_out_is_not_repeated_and_waits(book: Path) -> None:
    run = scenes.drive(paying(book, amount=13).runs.get())
    decide(run, "approve")
    run = scenes.drive(run)
    item = open_item(run)
    assert (run.status, item.cause, len(lines(book))) == ("at_gate", "outcome_unknown", 1)
    assert item.allowed == ["happened", "not_happened", "close"]
    assert Step.objects.get(run=run, kind="tool_call").status == "outcome_unknown"
    decide(run, "happened", "The statement shows it.")
    run = scenes.drive(run)
    assert (run.status, len(lines(book))) == ("succeeded", 1)


def test_s2_37_a_tool_that_can_be_asked_reconciles_itself(book: Path) -> None:
    run = scenes.drive(paying(book, amount=13, tool="transfer").runs.get())
    assert (run.status, len(lines(book))) == ("succeeded", 1)
    assert Step.objects.filter(run=run, kind="tool_call").count() == 2
    assert not Escalation.objects.filter(run=run).exists()


def test_s2_22_what_the_tool_refuses_has_surely_not_happened(book: Path) -> None:
    task = plan_task(
        [plan(step("a", tool="transfer", risk="reversible_write"))],
        [review("blocked", finding("a", "not_met", "e1", fix="Ask the bank."))],
        executor=[parameters(book=str(book), amount=-1)],
        spec={"tools": ["transfer"]},
    )
    run = scenes.drive(task.runs.get())
    item = open_item(run)
    assert (item.cause, item.allowed) == ("input", ["answer", "close"])
    assert item.packet["asks"]["questions"] == ["a.txt exists: not met. Ask the bank."]
    assert run.state is not None
    assert run.state["results"][0]["status"] == "failed"


def test_s2_26_an_attempt_that_errs_after_a_write_does_not_write_again(
    book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loops.patterns import plan_execute

    original, broken = plan_execute.Executor._noted, []

    def break_once(*args: Any, **facts: Any) -> Any:
        if not broken:
            broken.append(True)
            raise RuntimeError("a bug after the effect")
        return original(*args, **facts)

    monkeypatch.setattr(plan_execute.Executor, "_noted", break_once)
    task = paying(book, tool="transfer")
    profile = task.agents["executor"]
    scenes.AgentProfile.objects.filter(name=profile).update(
        config={
            "steps": [
                {"role": "executor", "text": parameters(book=str(book), amount=amount)}
                for amount in (12, 99)
            ]
        }
    )
    run = scenes.drive(task.runs.get())
    assert (run.status, run.attempts.filter(status="error").count()) == ("succeeded", 1)
    assert lines(book) == [f"lw-{run.pk}-1-a 12"]


def test_s2_24_a_tool_that_the_task_does_not_name_is_refused(book: Path) -> None:
    unnamed = plan(step("a", tool="pay", risk="high_impact"))
    task = plan_task([unnamed] * 3, [], on_limit="stop")
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason) == ("failed", "tool_unauthorized")
    assert "'pay', which this task may not use" in run.reason


def test_s2_35_a_tool_of_the_workspace_needs_one() -> None:
    named = plan(step("a", tool="read_file"))
    run = scenes.drive(plan_task([named] * 3, [], on_limit="stop").runs.get())
    assert (run.status, run.stop_reason) == ("failed", "capability_unavailable")


def test_s2_38_s2_g1_a_limit_stops_it_with_a_structured_incomplete_result() -> None:
    written = plan(step("a", tool=None), step("b", "a", tool=None))
    task = plan_task(
        [written], [], executor=["one", "two"], on_limit="stop", limits={"model_calls": 2}
    )
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason) == ("budget_exhausted", "model_calls")
    assert run.used.model_calls == 2


def test_s2_38_a_failed_review_hands_over_what_remains() -> None:
    task = plan_task(
        [plan(step("a", tool=None))],
        [review("revise", finding("a", "not_met", "e1", fix="Write more."))],
        executor=["one"],
        spec={"max_revisions": 0},
        on_limit="stop",
    )
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason) == ("budget_exhausted", "revisions")
    assert run.result is not None
    report = artifacts.get_text(run.result["text"])
    assert '"complete": false' in report
    assert "a.txt exists: not met. Write more." in report


def test_s2_18_an_answer_reaches_the_planner(book: Path) -> None:
    assuming = plan(step("a", tool=None), assumptions=["Only Linux."])
    task = plan_task([assuming, assuming], [ACCEPT], executor=["text"])
    run = scenes.drive(task.runs.get())
    assert open_item(run).packet["asks"]["questions"] == ["Only Linux."]
    decide(run, "answer", "Windows too.")
    run = scenes.drive(run)
    assert run.status == "succeeded"
    asked = Step.objects.filter(run=run, role="planner").order_by("attempt_no").last()
    assert asked is not None
    assert "Only Linux. Answer: Windows too." in artifacts.get_text(asked.prompt)


def test_s2_08_a_person_may_grant_what_ran_out() -> None:
    task = plan_task(
        [plan(step("a", tool=None))],
        [
            review("revise", finding("a", "not_met", "e1")),
            review("accept", finding("a", "met", "e2")),
        ],
        executor=["one", "two"],
        reviser=[plan(step("c", tool=None, acceptanceCriteria=["a.txt exists"]))],
        spec={"max_revisions": 0},
    )
    run = scenes.drive(task.runs.get())
    assert (run.status, open_item(run).cause) == ("at_gate", "revisions")
    decide(run, "continue", "Once more.")
    assert scenes.drive(run).status == "succeeded"


def test_s2_21_reads_run_side_by_side_as_steps_of_their_own(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", **{"a.txt": "A\n", "b.txt": "B\n"})
    task = plan_task(
        [plan(step("a", tool="read_file"), step("b", tool="read_file"))],
        [review("accept", finding("a", "met", "e1"), finding("b", "met", "e2"))],
        executor=[parameters(path="a.txt"), parameters(path="b.txt")],
        repo=repo,
        spec={"parallel_reads": 2},
    )
    run = scenes.drive(task.runs.get())
    assert run.status == "succeeded"
    used = Step.objects.filter(run=run, kind="tool_call").order_by("seq")
    assert len({one.attempt_no for one in used}) == 1
    assert [artifacts.get_text(one.output) for one in used] == ["A\n", "B\n"]


def test_s2_32_what_a_person_decides_stands_beside_what_the_reviewer_had_said() -> None:
    task = plan_task(
        [plan(step("a", tool=None))],
        [review("revise", finding("a", "not_met", "e1"))],
        executor=["one"],
        spec={"max_revisions": 0},
    )
    run = scenes.drive(task.runs.get())
    item = decide(run, "accept")
    assert (item.model_said, item.decision) == ("failed", "accept")
    run.refresh_from_db()
    assert run.stop_reason == "accepted_by_person"


def test_s2_32_a_reviewer_that_is_the_planner_s_model_is_told_at_submission() -> None:
    for role in ("planner", "reviewer"):
        scenes.AgentProfile.objects.create(
            name=role, provider="anthropic", config={"model": "claude-opus-5-5"}
        )
    request = TaskRequest(
        pattern="plan_execute_review",
        title="blind",
        spec={"goal": "Reach it."},
        limits={"iterations": 1},
        agents={"planner": "planner", "reviewer": "reviewer"},
    )
    run = accept(request, project=scenes.project(), user=None).runs.get()
    note = run.events.get(kind="noted")
    assert note.text == "planner and reviewer are the same model: they share blind spots"


def test_s2_31_each_cited_link_is_one_recorded_tool_call(settings: Any) -> None:
    settings.LOOPWARDEN_HTTP_HOSTS = ["allowed.example"]
    one, two = "https://other.example/1", "https://other.example/2"
    task = plan_task(
        [plan(step("a", tool=None))],
        [ACCEPT],
        executor=[f"See {one} and {two}, and {one} again."],
        spec={"tools": ["http_get"], "cited_sources": True, "max_revisions": 0},
    )
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason) == ("at_gate", "revisions")
    calls = Step.objects.filter(run=run, kind="tool_call").order_by("seq")
    names = [f"http_get lw-{run.pk}-cited-0-{number}" for number in (1, 2)]
    assert ([call.name for call in calls], run.used.tool_calls) == (names, 2)
    assert "none of the allowed hosts" in artifacts.get_text(calls[0].output)
    assert run.state is not None
    assert [found["criterion"] for found in run.state["findings"]] == [
        f"citation: {url} opens" for url in (one, two)
    ]
