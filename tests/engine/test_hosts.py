"""Workers on several hosts: each has its own data folder, they share database and artifacts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from django.conf import settings as product
from moto.server import ThreadedMotoServer

from dashboard.storage import artifact_storage
from loops.models import Run
from loops.store import artifacts
from tests.engine import processes, scenes

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.worker]

ENDED = ("succeeded", "failed", "at_gate", "escalated", "budget_exhausted")


def _ended(run: Run) -> Run | None:
    run.refresh_from_db()
    return run if run.status in ENDED else None


@pytest.fixture
def bucket(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 server with a bucket, and this process's storage in it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    server = ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="loops")
        url = f"s3://loops/artifacts?endpoint={endpoint}&region=us-east-1"
        storage, _ = artifact_storage(url, Path("unused"))
        settings.STORAGES = {**settings.STORAGES, "default": storage}
        yield url
    finally:
        server.stop()


def _counting(repo: Path, tmp_path: Path, **facts: Any) -> Run:
    """Three rounds; the second one says when it has begun and waits for a word."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    wait = f"{{ touch {begun}; until [ -e {go} ]; do sleep 0.02; done; }}"
    check = f'test "$(cat n)" != 1 || {wait}; test "$(cat n)" = 2'
    return scenes.fix_task(repo, check, "echo $(($(cat n) + 1)) > n", **facts).runs.get()


def _moves_to_another_host(run: Run, log: Path, tmp_path: Path, **env: str) -> None:
    """The first host dies with its disk in the second attempt, and another one goes on."""
    first, second = tmp_path / "host-1", tmp_path / "host-2"
    env = {"LOOPWARDEN_SANDBOX": "none", **env}
    with processes.tender(log, **env):
        with processes.worker(log, LOOPWARDEN_DATA=str(first), **env) as dying:
            processes.until((tmp_path / "begun").exists)
            dying.kill()
        shutil.rmtree(first)
        (tmp_path / "go").touch()
        with processes.worker(log, LOOPWARDEN_DATA=str(second), **env):
            processes.until(lambda: _ended(run))
    assert (run.status, run.iterations) == ("succeeded", 2)
    assert list(run.attempts.order_by("no").values_list("claims", flat=True)) == [1, 2, 1]
    assert "+2" in artifacts.get_text((run.result or {})["patch"])
    assert sorted(folder.name for folder in (second / "runs").iterdir()) == [str(run.pk)]


def test_a_run_goes_on_on_a_host_that_shares_the_artifact_folder(log: Path, tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    run = _counting(repo, tmp_path)
    # The second host could not read it either: the run's start travels since the first attempt.
    shared = product.MEDIA_ROOT
    _moves_to_another_host(run, log, tmp_path, LOOPWARDEN_ARTIFACTS=str(shared))


def test_a_carried_repository_needs_no_path_on_any_host_and_artifacts_lie_in_a_bucket(
    log: Path, tmp_path: Path, bucket: str, settings: Any
) -> None:
    settings.LOOPWARDEN_CARRY_SOURCES = True
    repo = scenes.repository(tmp_path / "repo", n="9\n")
    (repo / "n").write_text("0\n")
    run = _counting(repo, tmp_path, include_dirty=True)
    shutil.rmtree(repo)
    _moves_to_another_host(run, log, tmp_path, LOOPWARDEN_ARTIFACTS=bucket)
    with pytest.raises(FileNotFoundError):
        artifacts.get("0" * 64)


def test_a_worker_without_the_repository_says_what_to_do(tmp_path: Path) -> None:
    repo = scenes.repository(tmp_path / "repo", n="0\n")
    task = scenes.fix_task(repo, "true", "true", on_limit="stop")
    shutil.rmtree(repo)
    run = scenes.drive(task.runs.get())
    assert run.stop_reason == "errors"
    assert "LOOPWARDEN_CARRY_SOURCES" in run.reason
