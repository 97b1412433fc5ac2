from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dashboard.local.errors import CannotStart
from tests.dashboard.local.support import WAIT_SECONDS, gone
from tests.servers import postgres_program

ASK = """
import os, sys, dj_database_url, psycopg, redis
facts = dj_database_url.parse(os.environ["DATABASE_URL"])
with psycopg.connect(host=facts["HOST"], user=facts["USER"], dbname=facts["NAME"]) as connection:
    one = connection.execute("SELECT current_setting('listen_addresses')").fetchone()
client = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)
print(one, client.config_get("maxmemory-policy")["maxmemory-policy"])
client.close()
sys.exit(7)
"""
# The servers are children of the command's parent.
WAIT = """
import os, signal
from pathlib import Path
siblings = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text()
print(siblings, flush=True)
signal.pause()
"""


def have_postgres() -> bool:
    try:
        postgres_program("initdb")
    except CannotStart:
        return False
    return True


pytestmark = pytest.mark.skipif(not have_postgres(), reason="PostgreSQL is not installed")


@contextmanager
def servers(code: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "tests.servers", sys.executable, "-c", code]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def siblings(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 3
    return pids


def test_the_command_finds_both_servers_and_its_status_is_returned() -> None:
    with servers(ASK) as process:
        said, _ = process.communicate(timeout=60)
        assert said == "('',) noeviction\n"
        assert process.returncode == 7


def test_a_kill_leaves_neither_a_server_nor_the_command() -> None:
    with servers(WAIT) as process:
        pids = siblings(process)
        process.kill()
        assert gone(*pids)
        for left in Path(tempfile.gettempdir()).glob(f"lw-servers-{process.pid}-*"):
            shutil.rmtree(left)


def test_a_termination_ends_the_command_and_then_the_servers() -> None:
    with servers(WAIT) as process:
        pids = siblings(process)
        process.terminate()
        assert process.wait(WAIT_SECONDS) == 128 + signal.SIGTERM
        assert gone(*pids)
    assert not list(Path(tempfile.gettempdir()).glob(f"lw-servers-{process.pid}-*"))


def test_missing_programs_are_named_with_their_package() -> None:
    with pytest.raises(CannotStart, match="Debian package postgresql"):
        postgres_program("no-such-program")


def test_it_needs_a_command() -> None:
    argv = [sys.executable, "-m", "tests.servers"]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "usage: python -m tests.servers COMMAND..." in ran.stderr
