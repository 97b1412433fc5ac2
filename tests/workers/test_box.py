"""Another host can go on with a run: everything it needs travels as artifacts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from django.conf import settings
from django.db.models.functions import Now

from loops.models import Run, Step
from loops.store import artifacts, attempts
from tests.engine import rows, scenes
from workers import iteration
from workers.snapshots import Snapshot

pytestmark = pytest.mark.django_db(transaction=True)

COUNT_UP = "echo $(($(cat n) + 1)) > n"


def _home(run: Run) -> Path:
    return Path(settings.DATA_DIR) / "runs" / str(run.pk)


def _on_new_hosts(run: Run) -> Run:
    """Each attempt on a host that has never seen the run, and without its repository."""
    for _ in range(20):
        run.refresh_from_db()
        if run.status != "queued":
            return run
        scenes.step(run)
        if run.status == "queued":
            shutil.rmtree(_home(run))
    raise AssertionError(f"{run} is not bounded")


def _patch(run: Run) -> str:
    assert run.result is not None
    return artifacts.get_text(run.result["patch"])


def test_each_attempt_on_another_host_ends_the_same(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", n="0\n", other="kept\n")
    here = scenes.drive(scenes.fix_task(repo, "test $(cat n) = 3", COUNT_UP).runs.get())
    there = scenes.fix_task(repo, "test $(cat n) = 3", COUNT_UP).runs.get()
    scenes.step(there)
    shutil.rmtree(_home(there))
    shutil.move(repo, tmp_path / "gone")
    _on_new_hosts(there)
    assert (there.status, there.iterations) == (here.status, here.iterations) == ("succeeded", 3)
    assert _patch(there) == _patch(here)


def test_a_run_that_comes_back_to_a_host_finds_what_another_one_did(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    run = scenes.fix_task(repo, "test $(cat n) = 3", COUNT_UP).runs.get()
    scenes.step(run)
    first = shutil.move(_home(run), tmp_path / "first host")
    scenes.step(run)
    shutil.rmtree(_home(run))
    shutil.move(first, _home(run))
    scenes.drive(run)
    assert (run.status, run.iterations, run.errors) == ("succeeded", 3, 0)


def test_a_git_dir_made_in_the_workspace_travels(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    check = "test $(cat sub/.git/mark) = here && test $(cat n) = 2"
    fix = f"{COUNT_UP}; test -d sub || git init -q sub; touch sub/f; echo here > sub/.git/mark"
    run = scenes.fix_task(repo, check, fix).runs.get()
    scenes.step(run)
    assert [path for path, _ in Snapshot.load(run.tree).nested] == ["sub"]
    _on_new_hosts(run)
    assert (run.status, run.iterations, run.errors) == ("succeeded", 2, 0)


def test_uncommitted_changes_travel_too(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    (repo / "n").write_text("1\n")
    (repo / "new").write_text("untracked\n")
    check = "test $(cat n) = 3 && test $(cat new) = untracked"
    run = scenes.fix_task(repo, check, COUNT_UP, include_dirty=True).runs.get()
    scenes.step(run)
    shutil.rmtree(_home(run))
    shutil.move(repo, tmp_path / "gone")
    _on_new_hosts(run)
    assert (run.status, run.iterations) == ("succeeded", 2)
    assert "-1\n+3\n" in _patch(run)
    assert "untracked" not in _patch(run)


@pytest.mark.parametrize("same_host", [True, False], ids=["the same host", "another host"])
def test_a_step_is_replayed_only_where_its_snapshot_is(
    same_host: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker dies after its fix was recorded; what it changed was on its host only."""
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    run = scenes.fix_task(repo, "test $(cat n) = 1", COUNT_UP).runs.get()

    class Died(BaseException):
        """As a kill would: nothing catches it."""

    def die(_point: str) -> None:
        if _point == "decided":
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(iteration, "reach", die)
        with pytest.raises(Died):
            scenes.step(run)
    run.refresh_from_db()
    steps = dict(Step.objects.filter(run=run).values_list("seq", "started_at"))
    assert len(steps) == 2
    if not same_host:
        shutil.rmtree(_home(run))
    assert attempts.take_back(rows.lose_lease(run))
    rows.change(run, next_at=Now() - rows.AGO)
    scenes.step(run)
    again = dict(Step.objects.filter(run=run).values_list("seq", "started_at"))
    assert (again[2] == steps[2]) is same_host
    scenes.drive(run)
    assert (run.status, run.iterations) == ("succeeded", 1)
    assert "-0\n+1\n" in _patch(run)
