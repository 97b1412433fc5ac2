"""One iteration after the other, on real rows, real Valkey, real git and real commands."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from loops.core.lifecycle import RunStatus, StopReason
from loops.models import Attempt, AttemptStatus, Escalation, Reservation, Step
from loops.store import artifacts
from tests.engine import scenes
from workers.intake import TaskRequest, accept

pytestmark = pytest.mark.django_db(transaction=True)

NO_BADGER = {"calc.py": "import badger\n"}
REMOVE_BADGER = "sed -i /badger/d calc.py"
HAS_NO_BADGER = "! grep badger calc.py"


def test_s0_11_it_ends_with_the_code_when_the_reviewer_approves() -> None:
    task = scenes.pair_task(
        [scenes.code("one"), scenes.code("two")], [scenes.changes("say two"), scenes.APPROVED]
    )
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason, run.iterations) == ("succeeded", "accepted", 2)
    assert run.result is not None
    assert artifacts.get_text(run.result["text"]) == "two\n"
    assert [a.label for a in run.attempts.order_by("no")] == ["changes requested", "approved"]
    assert (run.used.model_calls, run.used.tokens, run.used.cost_microusd) == (4, 4400, 12_000)
    assert run.reserved.tokens == 0


def test_s0_13_it_waits_at_the_gate_with_the_last_reasons_at_the_round_cap() -> None:
    reviews = [scenes.changes("first"), scenes.changes("second")]
    task = scenes.pair_task([scenes.code("one"), scenes.code("two")], reviews, iterations=2)
    run = scenes.drive(task.runs.get())
    item = Escalation.objects.get(run=run)
    assert (run.status, run.stop_reason) == (RunStatus.AT_GATE, StopReason.ITERATIONS)
    assert item.packet["reasons"] == ["second"]
    assert item.packet["code"] == "two\n"
    assert item.packet["cost_microusd"] == 12_000


def test_s0_10_a_reviewer_without_a_verdict_goes_to_the_gate_and_costs_no_round() -> None:
    task = scenes.pair_task([scenes.code("one")], ["fine", "still fine"])
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason) == ("at_gate", "reviewer_invalid_verdict")
    assert (run.iterations, run.used.model_calls) == (0, 3)


def test_rc039_a_refusal_goes_to_the_gate_after_one_call() -> None:
    task = scenes.pair_task([{"text": "", "stop": "refusal"}], [])
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason) == ("at_gate", "refusal")
    assert (run.iterations, run.used.model_calls) == (0, 1)


def test_s0_g4_a_cut_answer_is_an_error_that_costs_no_round_and_ends_at_the_limit() -> None:
    cut = {"text": "```python", "stop": "max_tokens"}
    task = scenes.pair_task([cut, cut, cut, scenes.code("never")], [], errors=2)
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason) == ("at_gate", "errors")
    assert (run.iterations, run.errors, run.used.model_calls) == (0, 3, 3)
    assert {a.status for a in run.attempts.all()} == {AttemptStatus.ERROR}


def test_a_limit_refuses_the_next_call_before_it_is_made() -> None:
    answers = [scenes.code("one"), scenes.code("two")]
    task = scenes.pair_task(
        answers, [scenes.changes("a"), scenes.changes("b")], on_limit="stop", cost_microusd=7_000
    )
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason) == ("budget_exhausted", "cost")
    assert run.used.cost_microusd == 6_000
    assert "Cap $0.007, used $0.006, reserved $0.00, asked $0.003." in run.reason
    assert run.result is not None
    assert run.result["limit"] == "cost"


def test_s3_06_it_fixes_a_repository_and_hands_out_a_branch_and_a_patch(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", **NO_BADGER)
    before = _everything(repo)
    task = scenes.fix_task(repo, HAS_NO_BADGER, REMOVE_BADGER)
    run = scenes.drive(task.runs.get())
    assert (run.status, run.iterations) == ("succeeded", 1)
    assert run.result is not None
    assert _everything(repo) == before
    fetch, apply = run.result["take"]
    subprocess.run(fetch, shell=True, check=True)  # noqa: S602
    shown = subprocess.run(
        ["git", "show", f"{run.result['branch']}:calc.py"],
        cwd=repo,
        capture_output=True,
        check=True,
    )
    assert shown.stdout == b""
    subprocess.run(apply, shell=True, check=True)  # noqa: S602
    assert (repo / "calc.py").read_text() == ""


def test_s3_06_d6_the_last_fix_is_not_checked_again(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    task = scenes.fix_task(repo, "test $(cat n) = 3", "echo $(($(cat n) + 1)) > n", iterations=3)
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason) == ("budget_exhausted", "iterations")
    assert run.reason == "check_fix exceeded MAX_CHECK_FIX_ITERATIONS"
    assert run.result is not None
    assert run.result["last_fix_unverified"] is True


def test_rc130_a_failing_commit_hook_keeps_the_result_from_being_delivered(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", **NO_BADGER)
    hook = repo / ".git" / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\necho no commits on Mondays\nexit 1\n")
    hook.chmod(0o755)
    run = scenes.drive(scenes.fix_task(repo, HAS_NO_BADGER, REMOVE_BADGER).runs.get())
    item = Escalation.objects.get(run=run)
    assert (run.status, run.stop_reason) == ("at_gate", "hook_failed")
    assert "accept" not in item.allowed
    assert "no commits on Mondays" in item.packet["hook"]["tail"]
    assert run.result is not None
    assert "branch" not in run.result


def test_a_command_that_is_not_there_fails_with_its_name(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", **NO_BADGER)
    run = scenes.drive(scenes.fix_task(repo, "no-such-linter .", REMOVE_BADGER).runs.get())
    assert (run.status, run.stop_reason) == ("failed", "command_not_found")
    assert "no-such-linter" in run.reason


def test_a_duplicate_delivery_is_ignored_and_said_so() -> None:
    from workers.iteration import run_iteration

    task = scenes.pair_task([scenes.code("one")], [scenes.APPROVED])
    run = scenes.drive(task.runs.get())
    run_iteration(run.pk, 1, worker="late")
    assert run.events.order_by("seq").last().text == "duplicate delivery ignored"  # type: ignore[union-attr]
    assert Attempt.objects.filter(run=run).count() == 1
    run_iteration(10**9, 1, worker="late")


def test_every_attempt_leaves_its_steps_and_a_closed_ledger() -> None:
    task = scenes.pair_task([scenes.code("one")], [scenes.APPROVED])
    run = scenes.drive(task.runs.get())
    assert [s.role for s in Step.objects.filter(run=run).order_by("seq")] == ["coder", "reviewer"]
    states = [r.state for r in Reservation.objects.filter(run=run).order_by("id")]
    # The first one finds no counters: it is taken out by their installation and asked for again.
    assert states == ["void", "settled", "settled"]


def test_no_thinking_is_stored_and_the_prompt_is() -> None:
    task = scenes.pair_task([scenes.code("one")], [scenes.APPROVED])
    run = scenes.drive(task.runs.get())
    prompts = [artifacts.get_text(s.prompt) for s in Step.objects.filter(run=run)]
    assert all("Write it." in prompt for prompt in prompts)


def _everything(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        facts = os.lstat(path)
        digest.update(f"{path.relative_to(folder)} {facts.st_mode} {facts.st_mtime_ns}".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def test_a_finished_run_says_which_script_steps_nobody_used() -> None:
    task = scenes.pair_task([scenes.code("one"), scenes.code("two")], [scenes.APPROVED])
    run = scenes.drive(task.runs.get())
    last = run.events.order_by("seq").last()
    assert last is not None
    assert last.text == ("succeeded: approved; 1 of 2 scripted step(s) of role 'coder' are unused")


def test_rc138_guidance_and_the_last_reasons_reach_the_next_round() -> None:
    from django.contrib.auth import get_user_model

    from loops import gates

    answers = [scenes.code("one"), scenes.code("two")]
    reviews = [scenes.changes("mind the gap"), scenes.changes("Mind the gap."), scenes.APPROVED]
    task = scenes.pair_task([*answers, scenes.code("three")], reviews, iterations=5)
    run = scenes.drive(task.runs.get())
    assert run.stop_reason == StopReason.REPEATED_FINDING
    item = Escalation.objects.get(run=run)
    ada = get_user_model().objects.create_user("ada")
    gates.decide(item.pk, decision="continue", digest=item.digest, user=ada, guidance="Use a bus.")
    run = scenes.drive(run)
    prompt = Step.objects.filter(run=run, role="coder").order_by("attempt_no").last()
    assert prompt is not None
    asked = artifacts.get_text(prompt.prompt)
    assert "Use a bus." in asked
    assert "Mind the gap." in asked
    assert (run.status, run.limit_iterations) == ("succeeded", 7)


@pytest.mark.parametrize(
    ("on_limit", "status"), [("gate", "at_gate"), ("stop", "budget_exhausted")]
)
def test_rc055_the_same_failure_again_and_again_stops_the_run_with_its_reason(
    tmp_path: Path, on_limit: str, status: str
) -> None:
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    check = "echo SyntaxError at line $(cat n), pid $$; false"
    fix = "echo $(($(cat n) + 1)) > n"
    task = scenes.fix_task(repo, check, fix, iterations=9, on_limit=on_limit)
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason, run.iterations) == (status, "same_failure", 3)
    assert run.reason == "The same failure comes back after each attempt. Seen 3 times in a row."


@pytest.mark.parametrize(
    "check",
    [
        "wc -l < n.txt; test ! -s n.txt",
        "echo lines left; exit $(wc -l < n.txt)",
    ],
    ids=["a count that falls", "an exit code that falls"],
)
def test_rc055_what_comes_nearer_with_each_fix_is_no_standstill(tmp_path: Path, check: str) -> None:
    repo = scenes.repository(tmp_path / "repo", **{"n.txt": "x\n" * 5})
    run = scenes.drive(scenes.fix_task(repo, check, "sed -i 1d n.txt", iterations=8).runs.get())
    assert (run.status, run.iterations) == ("succeeded", 5)


@pytest.mark.parametrize(
    ("on_limit", "status"), [("gate", "at_gate"), ("stop", "budget_exhausted")]
)
def test_s2_34_a_repeated_finding_is_a_limit_like_every_standstill(
    on_limit: str, status: str
) -> None:
    answers = [scenes.code("one"), scenes.code("two")]
    reviews = [scenes.changes("mind the gap"), scenes.changes("Mind the gap.")]
    task = scenes.pair_task(answers, reviews, iterations=5, on_limit=on_limit)
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason, run.iterations) == (status, "repeated_finding", 2)


def test_a_contract_that_stands_still_stops_though_each_attempt_is_a_message_of_its_own() -> None:
    task = accept(
        TaskRequest(
            pattern="contract",
            title="retry",
            spec={"builder": "retry_feature", "arguments": '{"accept_up_to": 2}'},
            limits={"iterations": 9},
        ),
        project=scenes.project(),
        user=None,
    )
    run = scenes.drive(task.runs.get())
    assert (run.status, run.stop_reason) == ("budget_exhausted", "repeated_finding")
    assert (run.iterations, run.attempts.count()) == (3, 3)
    assert "the retry limit must be at most 2" in run.reason
    assert run.state is not None
    assert (run.state["retry_limit"], len(run.state["loopwarden"]["trail"])) == (3, 3)
