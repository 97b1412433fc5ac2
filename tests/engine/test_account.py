"""Every run that stopped says why, of which limits it used what, and what was said last (RC061)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from dashboard import tokens
from loops import gates
from loops.core.lifecycle import StopReason
from loops.figures import account
from loops.models import Escalation, Run
from loops.store import artifacts, runs
from tests.engine import scenes
from workers import sweeper

pytestmark = pytest.mark.django_db(transaction=True)

AXES = ["iterations", "errors", "model_calls", "tokens", "cost", "tool_calls", "active_seconds"]


def capped(on_limit: str) -> Run:
    """All rounds are used."""
    reviews = [scenes.changes("first"), scenes.changes("r1", "r2 <b>")]
    answers = [scenes.code("one"), scenes.code("two")]
    task = scenes.pair_task(
        answers, reviews, iterations=2, on_limit=on_limit, model_calls=9, cost_microusd=500_000
    )
    return scenes.drive(task.runs.get())


def stopped(_: Path) -> Run:
    return capped("stop")


def at_gate(_: Path) -> Run:
    return capped("gate")


def closed(_: Path) -> Run:
    item = Escalation.objects.get(run=capped("gate"))
    gates.decide(item.pk, decision="close", digest=item.digest, user=User.objects.get())
    return item.run


def approved(_: Path) -> Run:
    return scenes.drive(scenes.pair_task([scenes.code("one")], [scenes.APPROVED]).runs.get())


def one_round(**limits: int) -> Run:
    task = scenes.pair_task([scenes.code("one")], [scenes.changes("r1", "r2 <b>")], **limits)
    return scenes.step(task.runs.get())


def cancelled(_: Path) -> Run:
    run = one_round()
    gates.cancel(run, actor="ada")
    return run


def late(_: Path) -> Run:
    """Its deadline passed and nobody has swept yet."""
    run = one_round()
    Run.objects.filter(pk=run.pk).update(deadline_at=timezone.now() - timedelta(seconds=1))
    return run


def swept(where: Path) -> Run:
    run = late(where)
    sweeper.run_pass()
    return run


def not_found(where: Path) -> Run:
    repo = scenes.repository(where / "repo", **{"calc.py": "import badger\n"})
    return scenes.drive(scenes.fix_task(repo, "no-such-linter .", "true").runs.get())


def red(where: Path) -> Run:
    repo = scenes.repository(where / "repo", n="0\n")
    return scenes.drive(scenes.fix_task(repo, "false", "date > n", iterations=1).runs.get())


@pytest.mark.parametrize(
    ("scene", "status", "stop_reason", "reasons"),
    [
        (stopped, "budget_exhausted", "iterations", ["r1", "r2 <b>"]),
        (at_gate, "at_gate", "iterations", ["r1", "r2 <b>"]),
        (closed, "escalated", "closed_by_person", ["r1", "r2 <b>"]),
        (approved, "succeeded", "accepted", []),
        (cancelled, "cancelled", "cancelled_by_person", ["r1", "r2 <b>"]),
        (late, "budget_exhausted", "deadline", ["r1", "r2 <b>"]),
        (swept, "budget_exhausted", "deadline", ["r1", "r2 <b>"]),
        (not_found, "failed", "command_not_found", []),
        (red, "budget_exhausted", "iterations", ["check 1: false exited with 1"]),
    ],
)
def test_rc061_s1_16_page_and_api_give_the_same_account(
    scene: Callable[[Path], Run],
    status: str,
    stop_reason: str,
    reasons: list[str],
    tmp_path: Path,
) -> None:
    ada = User.objects.create_user("ada")
    run = scene(tmp_path)
    run.refresh_from_db()
    _, token = tokens.create("ci", user=ada, project=run.task.project)
    headers = {"Authorization": f"Bearer {token}"}
    told = Client().get(f"/api/v1/runs/{run.pk}", headers=headers).json()
    given = told["account"]
    assert (told["status"], told["stop_reason"]) == (status, stop_reason)
    assert (given["stop_reason"], given["last_reasons"]) == (stop_reason, reasons)
    assert given["sentence"] == told["reason"] != ""
    assert [counter["axis"] for counter in given["counters"]] == AXES
    assert given["counters"][0] == {
        "axis": "iterations",
        "used": run.iterations,
        "reserved": 0,
        "cap": run.limit_iterations,
    }

    browser = Client()
    browser.force_login(ada)
    page = browser.get(f"/tasks/{run.task_id}/").content.decode()
    card = page[page.index('id="account"') :].partition('<div class="card"')[0]
    shown = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", card)))
    assert f"Stop reason {stop_reason} " in shown
    assert f"Iterations {run.iterations} of {run.limit_iterations} " in shown
    assert f"Errors {run.errors} of 2 " in shown
    assert [reason in shown for reason in reasons] == [True] * len(reasons)
    assert ("Last reasons" in shown) is bool(reasons)
    assert unescape(page).count(given["sentence"]) >= 1


def test_rc061_a_run_that_goes_on_has_no_account_yet() -> None:
    run = one_round()
    assert run.status == "queued"
    assert account(run) is None


@pytest.mark.parametrize(
    ("on_limit", "status", "remains"),
    [("gate", "at_gate", ""), ("stop", "budget_exhausted", " What remains: r1; r2 <b>")],
)
def test_d1_a_cap_tells_the_same_whatever_becomes_of_the_run(
    on_limit: str, status: str, remains: str
) -> None:
    run = capped(on_limit)
    told = account(run)
    assert told is not None
    assert (run.status, told.stop_reason) == (status, StopReason.ITERATIONS)
    why = "The reviewer approved none of 2 rounds; the last reasons are kept."
    assert told.sentence == why + remains
    assert told.last_reasons == ("r1", "r2 <b>")
    used = {counter.axis: (counter.used, counter.cap) for counter in told.counters}
    assert (used["iterations"], used["model_calls"]) == ((2, 2), (4, 9))
    assert used["cost_microusd"] == (12_000, 500_000)
    assert run.result is not None
    assert artifacts.get_text(run.result["text"]) == "two\n"
    if on_limit == "stop":
        assert (run.result["limit"], run.result["remains"]) == ("iterations", "- r1\n- r2 <b>")
    else:
        packet = Escalation.objects.get(run=run).packet
        assert (packet["cause"], packet["feedback"]) == ("iterations", "- r1\n- r2 <b>")
        assert (packet["iterations"], packet["cap"]) == (2, 2)


def test_what_remains_of_a_run_that_was_never_judged_is_all_of_it() -> None:
    run = scenes.pair_task([scenes.code("one")], [scenes.APPROVED]).runs.get()
    runs.cancel(run, actor="ada")
    told = account(Run.objects.get(pk=run.pk))
    assert told is not None
    assert told.sentence.endswith("No attempt was judged: all of it remains.")
