from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from dashboard.local.ports import free_port

CODE = """
import django
django.setup()
from dashboard.local.database import prepare_database
prepare_database()
"""


def prepare(data: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
    settings = {"DJANGO_SETTINGS_MODULE": "dashboard.settings", "LOOPWARDEN_DATA": str(data)}
    return subprocess.run(
        [sys.executable, "-c", CODE],
        env={**inherited, **settings, **extra},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_migrates_and_leaves_the_file_in_wal_mode(tmp_path: Path) -> None:
    assert prepare(tmp_path).returncode == 0
    with closing(sqlite3.connect(tmp_path / "loopwarden.sqlite3")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("SELECT count(*) FROM auth_user").fetchone() == (0,)


def test_preparing_twice_changes_nothing(tmp_path: Path) -> None:
    assert prepare(tmp_path).returncode == 0
    assert prepare(tmp_path).returncode == 0


def test_an_unreachable_database_is_named(tmp_path: Path) -> None:
    url = f"postgres://nobody@127.0.0.1:{free_port()}/none"
    ran = prepare(tmp_path, DATABASE_URL=url)
    assert "CannotStart: DATABASE_URL: cannot use the database" in ran.stderr
