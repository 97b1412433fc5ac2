"""Gates as people met them elsewhere: three in one run, races, and nobody who answers (RC140+)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db.models.functions import Now

from loops import gates
from loops.core.plan_states import ApprovalRequired
from loops.core.tooling import ToolGrant, ToolUse, action_digest
from loops.figures import effective_status
from loops.models import Escalation, Run, Step
from loops.store import artifacts
from tests.engine import forked, rows, scenes
from tests.engine.disturbed import Disturbed
from tests.engine.forked import Forked
from tests.engine.plan_tasks import ACCEPT, TOOLS, decide, open_item, paying, plan_task
from tests.loops.patterns.plan_scenes import parameters, plan, step
from workers import sweeper
from workers.run_tools import RunTools

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.worker,
    pytest.mark.usefixtures("forks"),
]

PAY = step("a", tool="pay", risk="high_impact")


@pytest.fixture(autouse=True)
def _tools(settings: Any) -> None:
    settings.LOOPWARDEN_TOOLS = TOOLS


def test_rc132_a_tool_itself_wants_the_approval_of_exactly_this(tmp_path: Path) -> None:
    """Whatever a pattern says was approved: the digest is that of what is about to run."""
    run = paying(tmp_path / "book").runs.get()
    nothing: Any = None  # it must refuse before it needs a recorder or a workspace
    tools = RunTools(run, ToolGrant(names=("pay",)), nothing, nothing, nothing)
    use = ToolUse(key="k", tool="pay", parameters={"book": "b", "amount": 120})
    for approved in ("", action_digest("pay", {"book": "b", "amount": 12})):
        with pytest.raises(ApprovalRequired):
            tools.use(use, approved=approved)


def test_rc138_words_of_rejection_reach_a_prompt_that_another_process_writes(
    log: Path, tmp_path: Path
) -> None:
    words = "Use the event bus; keep the public API."
    task = plan_task(
        [plan(PAY)],
        [ACCEPT],
        executor=[parameters(book=str(tmp_path / "book"), amount=1), "The text."],
        reviser=[plan(step("c", tool=None, acceptanceCriteria=["a.txt exists"]))],
        spec={"tools": ["pay"]},
    )
    run = scenes.drive(task.runs.get())
    decide(run, "reject", words)
    assert Forked(log, forked.work).ended() == 0
    run.refresh_from_db()
    assert run.status == "succeeded"
    assert words in artifacts.get_text(Step.objects.get(run=run, role="reviser").prompt)
    assert not (tmp_path / "book").exists()


def test_rc140_each_of_three_gates_in_one_run_moves_it(tmp_path: Path) -> None:
    """Guidance on a question, an edit of the action, and the approval of the edited one."""
    book = tmp_path / "book"
    run = plan_task(
        [plan(PAY, assumptions=["In euros."]), plan(PAY, assumptions=["In euros."])],
        [ACCEPT],
        executor=[parameters(book=str(book), amount=120), parameters(book=str(book), amount=12)],
        reviser=[
            plan(step("b", tool="pay", risk="high_impact", acceptanceCriteria=["a.txt exists"]))
        ],
        spec={"tools": ["pay"]},
    ).runs.get()
    causes, moved = [], []
    for decision, words in (("answer", "Yes."), ("reject", "Pay 12."), ("approve", "")):
        run = scenes.drive(run)
        assert run.status == "at_gate"
        causes.append(open_item(run).cause)
        before = run.attempt_no
        decide(run, decision, words)
        run = scenes.drive(run)
        moved.append(run.attempt_no > before)
    assert (causes, moved) == (["input", "approval", "approval"], [True, True, True])
    assert (run.status, run.stop_reason) == ("succeeded", "accepted")
    assert [line.split()[1] for line in book.read_text().splitlines()] == ["12"]
    revised = Step.objects.get(run=run, role="reviser")
    assert "Pay 12." in artifacts.get_text(revised.prompt)


def test_rc142_a_second_approval_after_the_end_changes_and_costs_nothing(tmp_path: Path) -> None:
    book = tmp_path / "book"
    run = scenes.drive(paying(book).runs.get())
    item = decide(run, "approve")
    run = scenes.drive(run)
    before = Run.objects.filter(pk=run.pk).values().get()
    ada = get_user_model().objects.get(username="ada")
    with pytest.raises(gates.NotPossibleNow, match="ada was first: approve"):
        gates.decide(item.pk, decision="approve", digest=item.digest, user=ada)
    assert sweeper.run_pass() == 0
    assert Run.objects.filter(pk=run.pk).values().get() == before
    assert run.status == "succeeded"
    assert len(book.read_text().splitlines()) == 1


@pytest.mark.parametrize("point", ["parked", "finished"])
def test_rc144_a_decision_at_the_moment_of_parking_is_not_lost(
    point: str, log: Path, tmp_path: Path
) -> None:
    """The item is seen only once the run is parked; its old worker may still be tidying up."""
    book = tmp_path / "book"
    # The first attempt makes the plan, the second one asks for the approval.
    run = scenes.step(paying(book).runs.get())
    parking = Disturbed(log, point, "stop")
    parking.dies()
    if point == "parked":
        assert not Escalation.objects.exists()
        parking.comes_back()
    decide(run, "approve")
    began = time.monotonic()
    assert Forked(log, forked.work).ended() == 0
    run.refresh_from_db()
    assert (run.status, time.monotonic() - began < 10) == ("succeeded", True)
    parking.comes_back()
    assert len(book.read_text().splitlines()) == 1
    assert not Run.objects.exclude(status="succeeded").exists()


def test_rc146_an_item_that_nobody_answers_has_expired_and_nobody_has_rejected_it(
    tmp_path: Path,
) -> None:
    book = tmp_path / "book"
    run = scenes.drive(paying(book).runs.get())
    item = open_item(run)
    rows.change(run, deadline_at=Now() - rows.AGO)
    # True at once for whoever reads it, and made permanent by the next sweep.
    assert effective_status(run)[0] == "budget_exhausted"
    with pytest.raises(gates.NotPossibleNow):
        decide(run, "approve")
    assert sweeper.run_pass() == 1
    item.refresh_from_db()
    run.refresh_from_db()
    assert (item.status, item.decision, item.decided_by) == ("expired", "", None)
    last = run.events.latest("seq")
    assert (run.stop_reason, last.kind, last.actor) == ("deadline", "deadline", "system")
    told = [run.reason, *run.events.values_list("text", flat=True)]
    assert "reject" not in " ".join(told).lower()
    assert not book.exists()
