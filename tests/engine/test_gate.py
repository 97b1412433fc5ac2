"""What the gate lets through: nothing but a person's yes to exactly what was shown (S0-X2)."""

from __future__ import annotations

import hashlib
import os
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from dashboard.results import how_to_take
from loops import gates
from loops.core.lifecycle import StopReason
from loops.figures import Calibration, calibration
from loops.models import Escalation, Run
from loops.store import artifacts
from tests.engine import scenes
from workers import sweeper

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ada(db: None) -> User:
    """Decides at the gate."""
    return User.objects.create_user("ada")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with one file."""
    return scenes.repository(tmp_path / "repo", **{"calc.py": "one\n"})


def everything(folder: Path) -> str:
    """A hash over all files, `.git` included."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)} {os.lstat(path).st_mtime_ns}".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def parked(repo: Path) -> Run:
    """A run at the gate with work that its reviewer did not pass."""
    task = scenes.verify_task(
        repo, [{"calc.py": "two\n"}], [scenes.review("continue", "more")], iterations=1
    )
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason) == ("at_gate", "iterations")
    return run


def test_rc067_the_gate_holds_the_change_and_what_was_spent(repo: Path) -> None:
    packet = Escalation.objects.get(run=parked(repo)).packet
    assert b"+two" in artifacts.get(packet["patch"])
    assert "modified: calc.py (+1 -1)" in packet["summary"]
    assert (packet["reasons"], packet["tokens"], packet["cost_microusd"]) == (["more"], 2200, 6000)


def test_s0_x2_silence_is_no_yes(repo: Path) -> None:
    before = everything(repo)
    run = parked(repo)
    long_ago = timezone.now() - timedelta(days=365)
    Run.objects.update(created_at=long_ago, started_at=long_ago, next_at=long_ago)
    Escalation.objects.update(created_at=long_ago)
    for _ in range(3):
        sweeper.run_pass()
    run.refresh_from_db()
    assert (run.status, Escalation.objects.get(run=run).status) == ("at_gate", "open")
    assert everything(repo) == before


def test_s0_x2_a_deadline_at_the_gate_is_no_yes(repo: Path, ada: User) -> None:
    before = everything(repo)
    run = parked(repo)
    item = Escalation.objects.get(run=run)
    Run.objects.filter(pk=run.pk).update(deadline_at=timezone.now() - timedelta(seconds=1))
    sweeper.run_pass()
    run.refresh_from_db()
    assert (run.status, run.stop_reason) == ("budget_exhausted", StopReason.DEADLINE)
    with pytest.raises(gates.NotPossibleNow):
        gates.decide(item.pk, decision="accept", digest=item.digest, user=ada)
    run.refresh_from_db()
    assert run.status == "budget_exhausted"
    assert how_to_take(run)[0].startswith("So far, not accepted")
    assert everything(repo) == before


@pytest.mark.parametrize(
    ("decision", "status", "word"),
    [("close", "escalated", "So far, not accepted"), ("accept", "succeeded", "Result")],
)
def test_s0_x2_only_an_explicit_yes_accepts(
    repo: Path, ada: User, decision: str, status: str, word: str
) -> None:
    before = everything(repo)
    run = parked(repo)
    item = Escalation.objects.get(run=run)
    gates.decide(item.pk, decision=decision, digest=item.digest, user=ada)
    run.refresh_from_db()
    assert (run.status, run.stop_reason.endswith("by_person")) == (status, True)
    assert how_to_take(run)[0].startswith(word)
    assert everything(repo) == before


def test_s2_32_how_often_people_overrule_reviewers_is_counted(ada: User) -> None:
    """A second model is no independent witness: what people decide is what counts."""
    told = []
    for number, decision in enumerate(["close", "accept", "continue"]):
        answers, reviews = [scenes.code(w) for w in "ab"], [scenes.changes(w) for w in "xy"]
        task = scenes.pair_task(answers, reviews, name=f"pair-{number}", iterations=1)
        item = Escalation.objects.get(run=scenes.drive(task.runs.get()))
        assert item.model_said == "changes requested"
        shown = {"digest": item.digest, "user": ada, "guidance": "Go on."}
        gates.decide(item.pk, decision=decision, **shown)
        found = calibration(task)
        told.append((found.decided, found.otherwise))
    assert told == [(1, 0), (2, 1), (3, 1)]
    refused = scenes.pair_task([{"text": "", "stop": "refusal"}], [], name="refused")
    item = Escalation.objects.get(run=scenes.drive(refused.runs.get()))
    gates.decide(item.pk, decision="close", digest=item.digest, user=ada)
    assert calibration(refused) == Calibration(decided=3, otherwise=1)
    browser = Client()
    browser.force_login(ada)
    page = browser.get(f"/tasks/{refused.pk}/").content.decode()
    assert "people decided otherwise in 1 of the last 3 reviews that they saw" in page


def test_s0_x3_a_yes_to_one_half_is_none_to_the_other(ada: User) -> None:
    """An action split in two meets the gate twice: each item takes a decision of its own."""
    answers, reviews = [scenes.code(w) for w in "abc"], [scenes.changes(w) for w in "xyz"]
    task = scenes.pair_task(answers, reviews, iterations=1)
    run = scenes.drive(task.runs.get())
    first = Escalation.objects.get(run=run)
    shown = {"digest": first.digest, "user": ada, "guidance": "Go on."}
    gates.decide(first.pk, decision="continue", iterations=1, **shown)
    run = scenes.drive(run)
    second = Escalation.objects.get(run=run, status="open")
    assert (run.status, run.iterations, second.pk != first.pk) == ("at_gate", 2, True)
    for item in (first, second):
        with pytest.raises(gates.NotPossibleNow):
            gates.decide(item.pk, decision="accept", **shown)
    run.refresh_from_db()
    second.refresh_from_db()
    assert (run.status, second.status) == ("at_gate", "open")
