"""A check that is not ready, in every pattern that runs checks: one rule (RC053, S3-11)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from loops import feed, gates
from loops.models import Escalation, Run, Task
from tests.engine import scenes
from tests.engine.plan_tasks import plan_task
from tests.engine.test_implement_verify import shown
from tests.loops.patterns.plan_scenes import finding, parameters, plan, review, step
from workers import dispatch
from workers.intake import TaskRequest, accept

pytestmark = pytest.mark.django_db(transaction=True)

SLOW = "echo x >> looks; test $(wc -l < looks) = 3 || exit 75"
"""Ready at the third look."""
NEVER = "exit 75"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with one file."""
    return scenes.repository(tmp_path / "repo", **{"app.py": "one\n"})


def verify(repo: Path, *, test: str = SLOW, **spec: Any) -> Task:
    reviews = spec.pop("reviews", [scenes.review("pass")])
    writes = spec.pop("writes", [{"app.py": "two\n"}])
    return scenes.verify_task(repo, writes, reviews, lint="true", test=test, **spec)


def planned(repo: Path, *, test: str = SLOW, **spec: Any) -> Task:
    writes = step("a", tool="write_file", risk="reversible_write")
    return plan_task(
        [plan(writes)],
        [review("accept", finding("a", "met", "e1"))],
        executor=[parameters(path="app.py", content="two\n")],
        repo=repo,
        spec={"checks": ["true", test], **spec},
    )


def fixing(repo: Path, *, test: str = SLOW, **spec: Any) -> Task:
    checks = {"checks": ["true", test], "fixes": ["echo two > app.py"]}
    return scenes.fix_task(repo, test, "", spec={**checks, **spec})


def once(repo: Path, *, test: str = SLOW, **spec: Any) -> Task:
    scenes.agent("once", "worker", {"text": "done", "writes": {"app.py": "two\n"}})
    checks = {"prompt": "do it", "edits_files": True, "checks": ["true", test]}
    request = TaskRequest(
        pattern="one_pass",
        title="once",
        spec={**checks, **spec},
        limits={"iterations": 1},
        agents={"worker": "once"},
        repo=str(repo),
    )
    return accept(request, project=scenes.project(), user=None)


def to_the_first_wait(run: Run) -> Run:
    while run.status == "queued" and not run.attempts.filter(status="waited").exists():
        run = scenes.step(run)
    return run


def roles(run: Run) -> list[str]:
    """Who did something, in order."""
    return [s.role for s in run.steps.order_by("attempt_no", "seq")]


EVERY = pytest.mark.parametrize(
    ("start", "checked", "before", "after"),
    [
        pytest.param(verify, ["lint", "test"], ["implementer"], ["reviewer"], id="verify"),
        pytest.param(
            planned,
            ["check 1", "check 2"],
            ["planner", "executor", "tool"],
            ["reviewer"],
            id="plan",
        ),
        pytest.param(fixing, ["check 1", "check 2"], [], [], id="fix"),
        pytest.param(once, ["check 1", "check 2"], ["worker"], [], id="once"),
    ],
)


@EVERY
def test_rc053_nothing_that_is_done_is_repeated_or_paid_again(
    repo: Path, start: Any, checked: list[str], before: list[str], after: list[str]
) -> None:
    run = to_the_first_wait(start(repo).runs.get())
    used = run.iterations
    assert (run.status, run.lease_expires_at, run.admitted_at) == ("queued", None, None)
    assert run.reason.startswith(f"Not ready yet: {checked[1]} (")
    assert run.reason.endswith("It looks again in 30 s.")
    assert feed.client().zcard("loopwarden:slots:pool") == 0
    assert dispatch.admit_waiting() == 0
    run = scenes.drive(run)
    assert run.status == "succeeded"
    assert roles(run) == [*before, *checked, checked[1], checked[1], *after]
    assert run.steps.filter(status="done").count() == len(roles(run))
    judged = run.attempts.filter(status="judged")
    assert run.attempts.filter(status="waited", counted=False).count() == 2
    assert run.iterations == judged.filter(counted=True).count() <= used + 1


@EVERY
def test_looks_are_bounded_in_every_pattern(
    repo: Path, start: Any, checked: list[str], before: list[str], after: list[str]
) -> None:
    run = scenes.drive(start(repo, test=NEVER, max_polls=3, poll_seconds=9).runs.get())
    assert (run.stop_reason, run.reason) == (
        "polls",
        f"Not ready after 3 looks: {checked[1]} (exit 75).",
    )
    assert roles(run) == [*before, *checked, checked[1], checked[1]]
    assert not set(after) & set(roles(run))


def decide(run: Run, decision: str, words: str) -> None:
    item = Escalation.objects.get(run=run, status="open")
    ada, _ = get_user_model().objects.get_or_create(username="ada")
    gates.decide(item.pk, decision=decision, digest=item.digest, user=ada, guidance=words)


def test_after_too_many_looks_a_person_lets_it_look_again_and_nothing_is_done_again(
    repo: Path,
) -> None:
    run = scenes.drive(verify(repo, max_polls=2).runs.get())
    assert (run.status, run.stop_reason, run.iterations) == ("at_gate", "polls", 0)
    checks = Escalation.objects.get(run=run).packet["checks"]
    assert [check["name"] for check in checks] == ["lint", "test"]
    decide(run, "continue", "look again")
    run = scenes.drive(run)
    assert (run.status, run.iterations) == ("succeeded", 1)
    assert roles(run) == ["implementer", "lint", "test", "test", "test", "reviewer"]


def test_what_a_person_said_during_a_wait_reaches_the_next_implementation(repo: Path) -> None:
    turns = "echo x >> looks; exit $(sed -n $(wc -l < looks)p turns)"
    writes = [{"turns": "75\n75\n1\n0\n"}, {"app.py": "two\n"}]
    run = scenes.drive(verify(repo, test=turns, writes=writes, max_polls=2).runs.get())
    decide(run, "continue", "mind the gap")
    run = scenes.drive(run)
    assert (run.status, run.iterations) == ("succeeded", 2)
    asked = scenes.prompt_of(run, "implementer", 4)
    assert asked.count("mind the gap") == 1
    assert "exited with 1" in asked


def test_work_that_a_person_has_undone_while_it_waited_is_done_again(repo: Path) -> None:
    writes = [{"app.py": "wrong\n", "bad.py": ""}, {"app.py": "right\n"}]
    slow = "test -e bad.py && exit 75; true"
    run = scenes.drive(verify(repo, test=slow, writes=writes, max_polls=2).runs.get())
    assert "refactor" in Escalation.objects.get(run=run).allowed
    decide(run, "refactor", "another way")
    run = scenes.drive(run)
    assert (run.status, shown(run, "app.py"), shown(run, "bad.py")) == (
        "succeeded",
        "right\n",
        None,
    )
    assert roles(run)[-5:] == ["undo", "implementer", "lint", "test", "reviewer"]


def test_s4_07_a_refactor_after_waits_takes_back_the_whole_round(repo: Path) -> None:
    writes = [{"app.py": "wrong\n", "bad.py": ""}, {"app.py": "right\n"}]
    slow = "test -e bad.py || exit 0; " + SLOW
    reviews = [scenes.review("refactor", "use the bus"), scenes.review("pass")]
    run = verify(repo, test=slow, writes=writes, reviews=reviews).runs.get()
    for _ in range(3):
        run = scenes.step(run)
    assert (shown(run, "app.py"), shown(run, "bad.py"), shown(run, "looks")) == (
        "one\n",
        None,
        None,
    )
    run = scenes.drive(run)
    assert (run.status, run.iterations, shown(run, "app.py")) == ("succeeded", 2, "right\n")


def test_s4_14_a_person_undoes_a_round_that_waited_and_it_is_undone_once(repo: Path) -> None:
    writes = [{"app.py": "wrong\n"}, {"app.py": "right\n"}]
    reviews = [scenes.review("continue", "use the bus"), scenes.review("pass")]
    slow = "echo x >> $(cat app.py).looks; test $(wc -l < $(cat app.py).looks) = 3 || exit 75"
    run = scenes.drive(
        verify(repo, test=slow, writes=writes, reviews=reviews, yield_after_each=True).runs.get()
    )
    assert (run.stop_reason, run.attempts.count()) == ("yield", 3)
    decide(run, "refactor", "")
    run = scenes.drive(run)
    assert (run.status, run.iterations) == ("succeeded", 2)
    assert (shown(run, "app.py"), shown(run, "wrong.looks")) == ("right\n", None)
    assert roles(run).count("undo") == 1
    assert roles(run).count("implementer") == 2
    told = scenes.prompt_of(run, "implementer", 4)
    assert "was undone" in told
    assert "use the bus" in told


def test_s4_14_an_undo_of_a_round_that_waited_leaves_the_round_before_it_that_waited_too(
    repo: Path,
) -> None:
    every_other = "echo x >> looks; test $(($(wc -l < looks) % 2)) = 0 || exit 75"
    writes = [{"first.py": ""}, {"second.py": ""}, {"third.py": ""}]
    reviews = [scenes.review("continue", "a"), scenes.review("continue", "b")]
    task = verify(
        repo,
        test=every_other,
        writes=writes,
        reviews=[*reviews, scenes.review("pass")],
        yield_after_each=True,
    )
    run = scenes.drive(task.runs.get())
    decide(run, "continue", "")
    run = scenes.drive(run)
    decide(run, "refactor", "")
    run = scenes.drive(run)
    assert (run.status, run.iterations) == ("succeeded", 3)
    files = ("first.py", "second.py", "third.py", "looks")
    assert [shown(run, name) for name in files] == ["", None, "", "x\n" * 4]


def test_a_red_check_goes_first(repo: Path) -> None:
    """The work changes anyway, so nobody waits for what it would have been."""
    writes = [{"app.py": "broken\n"}, {"app.py": "two\n"}]
    slow = "grep -q two app.py || exit 75"
    red = "! grep broken app.py"
    run = scenes.drive(verify(repo, test=slow, writes=writes, build=red).runs.get())
    assert (run.status, run.iterations) == ("succeeded", 2)
    assert not run.attempts.filter(status="waited").exists()
    assert "75" not in scenes.prompt_of(run, "implementer", 2)
