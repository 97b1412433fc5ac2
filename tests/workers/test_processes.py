"""I11: a command whose attempt lost its lease is found on this host, and by the command line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from loops.models import Run
from tests.engine import rows, scenes
from workers import processes

pytestmark = pytest.mark.django_db


def run_and_token() -> tuple[Run, int]:
    """A run with a worker on it."""
    run, claim = rows.claimed()
    return run, claim.token


@pytest.fixture
def sleeper() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are ended with the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def begin(started: list[subprocess.Popen[bytes]], env: dict[str, str]) -> int:
    """A process that lives on, seen with its environment."""
    argv = ["sh", "-c", "echo up; exec sleep 60"]
    process = subprocess.Popen(argv, env={"PATH": "/usr/bin:/bin", **env}, stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.stdout.close()
    return process.pid


def test_a_process_of_a_live_attempt_is_as_it_should_be(
    sleeper: list[subprocess.Popen[bytes]],
) -> None:
    run, token = run_and_token()
    begin(sleeper, processes.mark(run.pk, token))
    assert processes.check(patience=0) == []


def test_a_process_of_an_older_token_or_an_ended_run_is_found(
    sleeper: list[subprocess.Popen[bytes]],
) -> None:
    run, token = run_and_token()
    pid = begin(sleeper, processes.mark(run.pk, token))
    rows.lost_and_taken_back(run)
    rows.take(run)
    begin(sleeper, processes.mark(run.pk, token + 1))
    found = processes.check(patience=0)
    assert [(v.code, v.subject) for v in found] == [("I11", f"run {run.pk}")]
    assert f"process {pid} under token {token}" in found[0].found


def test_a_process_of_another_installation_is_none_of_ours(
    sleeper: list[subprocess.Popen[bytes]],
) -> None:
    begin(sleeper, {"LOOP_ATTEMPT": "0123456789ab:7:1"})
    assert processes.check(patience=0) == []


def test_the_command_line_says_what_is_broken_and_fails(
    sleeper: list[subprocess.Popen[bytes]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    settings: object,
) -> None:
    settings.LOOPWARDEN_LEASE_SECONDS = 0  # type: ignore[attr-defined]
    call_command("check_invariants")
    assert "I4   not checked, give --books" in capsys.readouterr().out
    run = rows.queued()
    begin(sleeper, processes.mark(run.pk, 1))
    books = tmp_path / "books.json"
    books.write_text(json.dumps({run.pk: {"model_calls": 1}}))
    with pytest.raises(SystemExit, match="1"):
        call_command("check_invariants", books=books)
    table = capsys.readouterr().out
    assert "I3   ok" in table
    assert "I4   broken" in table
    assert f"run {run.pk} has process" in table
    with pytest.raises(SystemExit, match="1"):
        call_command("check_invariants", "--json", books=books)
    said = json.loads(capsys.readouterr().out)
    assert (said["holds"], said["unchecked"]) == (False, [])
    assert [v["code"] for v in said["violations"]] == ["I4", "I11"]


@pytest.mark.parametrize("text", ["[]", "{", '{"a": {}}', '{"1": {"tokens": 0.5}}'])
def test_books_that_cannot_be_read_are_refused(text: str, tmp_path: Path) -> None:
    books = tmp_path / "books.json"
    books.write_text(text)
    with pytest.raises(CommandError, match="--books"):
        call_command("check_invariants", books=books)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("sandbox", ["auto", "none"])
def test_commands_of_an_attempt_carry_its_mark(
    sandbox: str, tmp_path: Path, settings: object
) -> None:
    settings.LOOPWARDEN_SANDBOX = sandbox  # type: ignore[attr-defined]
    repo = scenes.repository(tmp_path / "repo", a="1\n")
    task = scenes.fix_task(repo, "echo $LOOP_ATTEMPT > mark; test -e done", "touch done; cat mark")
    run = scenes.step(task.runs.get())
    from loops.store import artifacts

    said = artifacts.get_text(run.steps.get(kind="command").output)
    assert f"LOOP_ATTEMPT={said.strip()}" == "=".join(*processes.mark(run.pk, 1).items())
