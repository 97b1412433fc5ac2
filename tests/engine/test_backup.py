"""A backup taken while workers run, put back into an empty database."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connection

from dashboard.local.backup import BackupFault, back_up, put_back
from dashboard.local.valkey import ValkeyServer
from loops.models import Run
from loops.store import artifacts, runs
from tests.engine import processes, scenes
from tests.servers import postgres_program

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.worker]


@pytest.fixture(autouse=True)
def _postgres_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor == "postgresql":
        folder = postgres_program("pg_dump").parent
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@contextmanager
def _empty_database(tmp_path: Path) -> Iterator[str]:
    """The address of a database with nothing in it, beside the test's own."""
    if connection.vendor == "sqlite":
        yield f"sqlite:///{tmp_path / 'restored.sqlite3'}"
        return
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE restored")
    try:
        here, _, _ = processes.database_url().rpartition("/")
        yield f"{here}/restored"
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP DATABASE restored WITH (FORCE)")


def _manage(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *args],
        cwd=processes.ROOT,
        env=processes.environment(**env),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_backup_of_running_work_is_put_back_and_the_run_goes_on(tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    wait = f"{{ touch {begun}; until [ -e {go} ]; do sleep 0.02; done; }}"
    check = f'test "$(cat n)" != 1 || {wait}; test "$(cat n)" = 2'
    run = scenes.fix_task(repo, check, "echo $(($(cat n) + 1)) > n").runs.get()
    log, copy = tmp_path / "log", tmp_path / "backup"
    env = {"LOOPWARDEN_SANDBOX": "none"}
    with processes.tender(log, **env), processes.worker(log, **env) as worker:
        processes.until(begun.exists)
        made = _manage({}, "backup", str(copy))
        assert made.returncode == 0, made.stderr
        worker.kill()
    go.touch()
    new = {**env, "LOOPWARDEN_DATA": str(tmp_path / "data")}
    with _empty_database(tmp_path) as url, ValkeyServer(tmp_path / "valkey") as valkey:
        new |= {"DATABASE_URL": url, "REDIS_URL": valkey.url}
        back = _manage({**new, "REDIS_URL": "unix:///nowhere/redis.sock"}, "restore", str(copy))
        assert back.returncode == 0, back.stderr
        assert "Redis is not running" in back.stdout
        assert "1 runs go on where the backup found them" in back.stdout
        with processes.tender(log, **new), processes.worker(log, **new):
            processes.until(lambda: _status(new, run) == "succeeded")
        again = _manage(new, "restore", str(copy))
        assert (again.returncode, "is not empty" in again.stderr) == (1, True)


def _status(env: dict[str, str], run: Run) -> str:
    look = f"from loops.models import Run; print(Run.objects.get(pk={run.pk}).status)"
    return _manage(env, "shell", "--no-imports", "-c", look).stdout.strip()


def test_a_worker_of_before_a_restore_can_write_nothing() -> None:
    run = scenes.pair_task([scenes.code("one")], [scenes.APPROVED]).runs.get()
    before = run.lease_token
    assert runs.fence_all() == 1
    run.refresh_from_db()
    assert run.lease_token > before + 1000


def test_a_backup_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    artifacts.put_text("kept")
    copy = tmp_path / "backup"
    assert back_up(copy) == 1
    with pytest.raises(BackupFault, match="exists already"):
        back_up(copy)
    with pytest.raises(BackupFault, match="the database is not empty"):
        put_back(copy)
    kept = next(file for file in (copy / "artifacts").rglob("*") if file.is_file())
    kept.write_text("changed")
    with pytest.raises(BackupFault, match="is damaged"):
        put_back(copy)
    kept.unlink()
    with pytest.raises(BackupFault, match="1 artifacts lack"):
        put_back(copy)
    (copy / "manifest.json").unlink()
    with pytest.raises(BackupFault, match="no complete backup"):
        put_back(copy)
