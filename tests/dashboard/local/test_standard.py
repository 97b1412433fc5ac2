from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

from dashboard.local.sockets import socket_url
from dashboard.local.standard import standard_children, standard_supervisor


def test_the_children_stop_before_the_work_they_hand_out() -> None:
    children = standard_children("127.0.0.1", 8700, 32)
    assert [child.name for child in children] == ["web", "tend", "worker"]


def test_the_worker_runs_threads_and_says_nothing_to_other_workers() -> None:
    worker = standard_children("127.0.0.1", 8700, 7)[2]
    assert worker.argv[:3] == (sys.executable, "-m", "celery")
    assert {"--pool=threads", "--concurrency=7", "--without-gossip"} <= set(worker.argv)


def test_the_port_of_the_settings_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    supervisor = standard_supervisor(ready=lambda: True)
    assert supervisor.address == "http://127.0.0.1:8700"
    assert supervisor.redis_url == socket_url(supervisor.data_dir)
    assert standard_supervisor(ready=lambda: True, port=9000).address == "http://127.0.0.1:9000"


def test_the_children_find_the_modules_that_this_process_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "own_loops.py").write_text("found = __file__\n")
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere{os.pathsep}{tmp_path}")
    env = standard_supervisor(ready=lambda: True)._env
    code = "import own_loops, dashboard; print(own_loops.found, dashboard.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd="/", capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [
        str(tmp_path / "own_loops.py"),
        str(settings.BASE_DIR / "dashboard/__init__.py"),
    ]


def test_a_redis_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere/3")
    assert standard_supervisor(ready=lambda: True).redis_url == "redis://elsewhere/3"
