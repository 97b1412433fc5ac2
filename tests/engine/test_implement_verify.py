"""implement_verify on real rows, real git and real commands (S4)."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as product
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db import connection

from loops import gates
from loops.core.errors import WorkspaceFault
from loops.models import AgentProfile, Escalation, Run, Step, StepKind, StepStatus
from loops.store import artifacts, runs
from tests.engine import processes, scenes
from workers.control import ControlRepo
from workers.lease import heart
from workers.snapshots import Snapshot, Snapshotter

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ada() -> User:
    """A person."""
    return get_user_model().objects.create_user("ada")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with one file."""
    return scenes.repository(tmp_path / "repo", **{"app.py": "one\n"})


def control_of(run: Run) -> ControlRepo:
    return ControlRepo(product.DATA_DIR / "runs" / str(run.pk) / "control.git")


def shown(run: Run, path: str) -> str | None:
    """A file of the run's workspace as the last attempt left it."""
    tree = Snapshot.load(run.tree).tree
    done = control_of(run).git.attempt("cat-file", "blob", f"{tree}:{path}")
    return done.out.decode() if done.code == 0 else None


def steps_of(run: Run, attempt_no: int) -> list[tuple[str, str, str]]:
    found = run.steps.filter(attempt_no=attempt_no).order_by("seq")
    return [(step.kind, step.role, step.status) for step in found]


def decide(run: Run, user: User, decision: str, guidance: str = "") -> Escalation:
    item = Escalation.objects.get(run=run, status="open")
    return gates.decide(
        item.pk, decision=decision, digest=item.digest, user=user, guidance=guidance
    )


def test_s4_02_the_checks_run_at_the_same_time_and_all_are_waited_for(repo: Path) -> None:
    """Each check waits for what another one writes: one after the other they would never end."""
    meet = "touch {0}.here; until [ -e {1}.here ]; do sleep 0.05; done"
    task = scenes.verify_task(
        repo,
        [{"app.py": "two\n"}],
        [scenes.review("pass")],
        lint=meet.format("lint", "test"),
        test=meet.format("test", "build"),
        build=meet.format("build", "lint"),
    )
    run = scenes.drive(task.runs.get())
    assert (run.status, run.iterations, run.used.tool_calls) == ("succeeded", 1, 3)
    assert steps_of(run, 1) == [
        ("agent_work", "implementer", "done"),
        ("check", "lint", "done"),
        ("check", "test", "done"),
        ("check", "build", "done"),
        ("model_call", "reviewer", "done"),
    ]
    assert shown(run, "lint.here") == ""


def test_s4_03_a_red_check_skips_the_review_and_its_end_reaches_the_next_prompt(
    repo: Path,
) -> None:
    task = scenes.verify_task(
        repo,
        [{"app.py": "broken\n"}, {"app.py": "two\n"}],
        [scenes.review("pass")],
        test="cat app.py; ! grep broken app.py >/dev/null",
    )
    run = scenes.drive(task.runs.get())
    assert (run.status, run.iterations) == ("succeeded", 2)
    assert not run.steps.filter(attempt_no=1, role="reviewer").exists()
    asked = scenes.prompt_of(run, "implementer", 2)
    assert "exited with 1\nbroken" in asked
    assert "a long story" not in asked


def test_s4_07_refactor_restores_the_files_exactly_and_is_a_recorded_step(repo: Path) -> None:
    task = scenes.verify_task(
        repo,
        [{"app.py": "wrong\n", "own/bus.py": "wrong\n"}, {"app.py": "right\n"}],
        [scenes.review("refactor", "use the event bus"), scenes.review("pass")],
    )
    run = scenes.step(task.runs.get())
    assert steps_of(run, 1)[-1] == ("undo", "undo", "done")
    assert (shown(run, "app.py"), shown(run, "own/bus.py")) == ("one\n", None)
    run = scenes.drive(run)
    assert (run.status, shown(run, "app.py"), shown(run, "own/bus.py")) == (
        "succeeded",
        "right\n",
        None,
    )
    assert "use the event bus" in scenes.prompt_of(run, "implementer", 2)
    assert [a.label for a in run.attempts.order_by("no")] == ["refactor", "pass"]


def test_rc067_s4_13_at_the_limit_the_work_of_the_last_attempt_is_handed_over(repo: Path) -> None:
    files = [{"app.py": f"{n}\n"} for n in range(2)]
    reviews = [scenes.review("continue", "a"), scenes.review("continue", "b")]
    run = scenes.drive(scenes.verify_task(repo, files, reviews, iterations=2).runs.get())
    item = Escalation.objects.get(run=run)
    assert (run.status, item.cause, shown(run, "app.py")) == ("at_gate", "iterations", "1\n")
    assert item.packet["reasons"] == ["b"]
    assert b"+1" in artifacts.get(item.packet["patch"])
    assert item.packet["cost_microusd"] == 12_000
    assert item.allowed == ["continue", "refactor", "accept", "close"]


def test_s4_g3_an_undo_that_cannot_be_exact_stops_the_run(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise WorkspaceFault("undo failed: these files are not as before: ['app.py']")

    monkeypatch.setattr(Snapshotter, "undo", fail)
    files, reviews = [{"app.py": "wrong\n"}], [scenes.review("refactor")]
    run = scenes.drive(scenes.verify_task(repo, files, reviews).runs.get())
    assert (run.status, run.stop_reason, run.iterations) == ("at_gate", "workspace", 0)
    assert "app.py" in run.reason
    assert Step.objects.get(run=run, kind=StepKind.UNDO).status == StepStatus.FAILED
    assert Escalation.objects.get(run=run).allowed == ["continue", "accept", "close"]


def test_s4_21_abort_asks_a_person_with_the_reviewer_s_words(repo: Path) -> None:
    files, reviews = [{"app.py": "two\n"}], [scenes.review("abort", "it contradicts itself")]
    run = scenes.drive(scenes.verify_task(repo, files, reviews).runs.get())
    item = Escalation.objects.get(run=run)
    assert (item.cause, item.model_said) == ("reviewer_abort", "abort")
    assert item.packet["reasons"] == ["it contradicts itself"]


def test_a_limit_that_refuses_one_check_lets_those_before_it_run(repo: Path) -> None:
    run = scenes.drive(
        scenes.verify_task(
            repo, [{"app.py": "two\n"}], lint="true", test="true", build="true", tool_calls=2
        ).runs.get()
    )
    assert (run.stop_reason, run.used.tool_calls, run.reserved.tool_calls) == ("tool_calls", 2, 0)
    assert [step.role for step in run.steps.filter(kind="check").order_by("seq")] == [
        "lint",
        "test",
    ]


def test_a_stop_reaches_all_side_by_side_checks(repo: Path, tmp_path: Path, settings: Any) -> None:
    settings.LOOPWARDEN_SANDBOX = "none"
    began = [tmp_path / name for name in ("lint", "test")]
    commands = {path.name: f"touch {path}; while :; do sleep 1; done" for path in began}
    run = scenes.verify_task(repo, [{"app.py": "two\n"}], **commands).runs.get()  # type: ignore[arg-type]

    def cancel() -> None:
        processes.until(lambda: all(path.exists() for path in began))
        runs.cancel(Run.objects.get(pk=run.pk), actor="ada")
        for lease in list(heart._leases):
            lease.beat()
        connection.close()

    with ThreadPoolExecutor() as pool:
        stopping = pool.submit(cancel)
        scenes.step(run)
        stopping.result()
    assert (run.status, run.reserved.tool_calls) == ("cancelled", 0)


def paused(repo: Path, strategy: str) -> Run:
    """A run that waits after its first attempt, in which the reviewer said this."""
    task = scenes.verify_task(
        repo,
        [{"app.py": "two\n"}, {"more.py": "more\n"}],
        [scenes.review(strategy, "use the bus"), scenes.review("pass")],
        yield_after_each=True,
    )
    return scenes.drive(task.runs.get())


def test_s4_14_a_pause_holds_no_worker_and_shows_strategy_and_feedback(repo: Path) -> None:
    run = paused(repo, "refactor")
    item = Escalation.objects.get(run=run)
    assert (run.status, run.stop_reason, run.iterations) == ("at_gate", "yield", 1)
    assert (run.lease_expires_at, run.admitted_at) == (None, None)
    assert (item.packet["said"], item.packet["feedback"]) == ("refactor", "use the bus")
    assert item.packet["patch"]
    assert shown(run, "app.py") == "two\n"
    assert item.allowed == ["continue", "refactor", "accept", "close"]


def test_s4_14_a_person_continues_where_the_reviewer_said_refactor(repo: Path, ada: User) -> None:
    run = paused(repo, "refactor")
    item = decide(run, ada, "continue", "keep it, only rename it")
    run = scenes.drive(run)
    assert (run.status, run.limit_iterations) == ("succeeded", 3)
    assert (shown(run, "app.py"), shown(run, "more.py")) == ("two\n", "more\n")
    asked = scenes.prompt_of(run, "implementer", 2)
    assert "keep it, only rename it" in asked
    assert "use the bus" not in asked
    assert (item.model_said, item.decision, item.overrides) == ("refactor", "continue", True)
    assert item.granted_iterations == 0


def test_s4_14_a_person_undoes_where_the_reviewer_said_continue(repo: Path, ada: User) -> None:
    run = paused(repo, "continue")
    item = decide(run, ada, "refactor")
    run = scenes.drive(run)
    assert steps_of(run, 2)[0] == ("undo", "undo", "done")
    assert (run.status, run.iterations) == ("succeeded", 2)
    assert (shown(run, "app.py"), shown(run, "more.py")) == ("one\n", "more\n")
    asked = scenes.prompt_of(run, "implementer", 2)
    assert "was undone" in asked
    assert "use the bus" in asked
    assert item.overrides


def test_s4_14_agreeing_with_the_reviewer_is_no_override(repo: Path, ada: User) -> None:
    assert not decide(paused(repo, "refactor"), ada, "refactor").overrides


def test_s4_14_accepting_at_a_pause_ends_it_with_what_there_is(repo: Path, ada: User) -> None:
    run = paused(repo, "continue")
    decide(run, ada, "accept")
    run.refresh_from_db()
    assert (run.status, run.stop_reason) == ("succeeded", "accepted_by_person")
    assert run.result is not None
    patch = Path(run.result["patch_path"])
    subprocess.run(["git", "apply", "--check", str(patch)], cwd=repo, check=True)


def test_s4_14_the_undo_is_done_again_when_the_next_attempt_fails(repo: Path, ada: User) -> None:
    """An attempt that throws leaves the files as they were before it."""
    run = paused(repo, "continue")
    profile = AgentProfile.objects.get(name="hand")
    profile.config["steps"].insert(1, {"role": "implementer", "error": "gone"})
    profile.save()
    decide(run, ada, "refactor")
    run = scenes.drive(run)
    assert [a.status for a in run.attempts.order_by("no")] == ["judged", "error", "judged"]
    assert steps_of(run, 2)[0] == steps_of(run, 3)[0] == ("undo", "undo", "done")
    assert (shown(run, "app.py"), shown(run, "more.py")) == ("one\n", "more\n")


def test_s4_14_an_ordered_undo_is_not_lost_at_a_later_gate(repo: Path, ada: User) -> None:
    run = paused(repo, "continue")
    profile = AgentProfile.objects.get(name="hand")
    profile.config["steps"][1:1] = [{"role": "implementer", "error": "gone"}] * 3
    profile.save()
    decide(run, ada, "refactor")
    run = scenes.drive(run)
    assert (run.status, run.stop_reason) == ("at_gate", "errors")
    decide(run, ada, "continue", "try again")
    run = scenes.drive(run)
    assert (run.status, shown(run, "app.py"), shown(run, "more.py")) == (
        "succeeded",
        "one\n",
        "more\n",
    )
    assert "was undone" in scenes.prompt_of(run, "implementer", 5)


def test_s4_14_undone_twice_in_a_row_nothing_of_either_attempt_is_left(
    repo: Path, ada: User
) -> None:
    task = scenes.verify_task(
        repo,
        [{"app.py": "two\n"}, {"more.py": "more\n"}, {"last.py": "last\n"}],
        [scenes.review("continue", "a"), scenes.review("continue", "b"), scenes.review("pass")],
        yield_after_each=True,
    )
    run = scenes.drive(task.runs.get())
    for _ in range(2):
        decide(run, ada, "refactor")
        run = scenes.drive(run)
    assert (run.status, shown(run, "last.py")) == ("succeeded", "last\n")
    assert (shown(run, "app.py"), shown(run, "more.py")) == ("one\n", None)


def test_s4_14_the_undo_needs_no_folder_of_the_earlier_host(
    repo: Path, ada: User, tmp_path: Path
) -> None:
    """The snapshots travel: another host has them from the artifacts."""
    run = paused(repo, "continue")
    control_of(run).folder.rename(tmp_path / "other-host")
    decide(run, ada, "refactor")
    run = scenes.drive(run)
    assert (run.status, shown(run, "app.py")) == ("succeeded", "one\n")
