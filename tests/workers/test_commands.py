"""A command ends in time, leaves nothing behind, and cannot harm the worker by what it prints."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loops.core.effects import CommandResult
from loops.core.errors import CommandFault
from workers.commands import run_command
from workers.sandbox import Sandbox, SandboxUnavailable, detect
from workers.text import clean_text

Run = Callable[..., CommandResult]


def sandboxes() -> Iterator[Sandbox]:
    yield detect("none")
    try:
        yield detect("bubblewrap")
    except SandboxUnavailable as reason:
        sys.stderr.write(f"tests run without bubblewrap: {reason}\n")


@pytest.fixture(params=list(sandboxes()), ids=lambda sandbox: sandbox.kind)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Run in a folder of its own, in each kind of sandbox."""

    def call(command: str | list[str], timeout: float = 20, **more: object) -> CommandResult:
        given = {"cwd": tmp_path, "sandbox": request.param, "timeout": timeout, **more}
        return run_command(command, **given)  # type: ignore[arg-type]

    return call


def token() -> str:
    """A number of seconds that no other sleep on this host has."""
    return f"100{uuid.uuid4().int % 10**12}"


def carriers(*words: str) -> list[int]:
    """Living processes with these words on their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if all(word in line for word in words) and state != "Z" and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def gone(mark: str, within: float = 10) -> bool:
    """Wait until no process carries the mark."""
    end = time.monotonic() + within
    while carriers(mark):
        if time.monotonic() > end:
            return False
        os.sched_yield()
    return True


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            "(while true; do echo tick; sleep 0.3; done) & cat <(sleep {mark})", id="RC087"
        ),
        pytest.param("echo tick; setsid sleep {mark} & sleep {mark}", id="RC091"),
        pytest.param("echo tick; sleep {mark}", id="RC097"),
        pytest.param("echo tick; trap '' TERM INT HUP; sleep {mark}", id="deaf"),
        pytest.param(
            "echo tick; (setsid env -i sh -c '(sleep {mark} &) ; sleep {mark}' &) ; sleep {mark}",
            id="double-fork-without-environment",
        ),
        pytest.param("echo tick; exec >&- 2>&-; sleep {mark}", id="streams-closed"),
        pytest.param("echo tick; f() {{ sleep {mark} & f; }}; f", id="forks-on"),
    ],
)
def test_a_timeout_leaves_no_descendant(run: Run, command: str) -> None:
    mark = token()
    begun = time.monotonic()
    result = run(command.format(mark=mark), timeout=1)

    assert carriers(mark) == []
    assert time.monotonic() - begun < 6
    assert result.timed_out
    assert result.exit_code is None
    assert not result.passed
    assert "tick" in result.output


@pytest.mark.parametrize("case", ["RC089"])
def test_a_command_that_leaves_processes_returns_at_once(run: Run, case: str) -> None:
    mark = token()
    result = run(f"sleep {mark} & setsid sleep {mark} & echo started", timeout=30)

    assert carriers(mark) == []
    assert result.exit_code == 0
    assert result.seconds < 8
    assert "started" in result.output
    assert result.warnings == ("background_process_killed",)


def test_helpers_that_a_shell_does_not_wait_for_may_finish(run: Run) -> None:
    result = run("echo hello > >(sleep 0.05; tr a-z A-Z)")
    assert (result.output, result.warnings) == ("HELLO\n", ())


@pytest.mark.parametrize("case", ["RC093"])
def test_binary_output_is_no_error(run: Run, case: str) -> None:
    result = run("printf '\\377\\376\\000bin\\n'; echo FAILED; exit 1", timeout=10)

    assert result.exit_code == 1
    assert result.output == "\ufffd\ufffdbin\nFAILED\n"


@pytest.mark.parametrize("case", ["RC095"])
@pytest.mark.parametrize("letters", ["\\u00e9", "a\\u00e9", "\\u20ac", "\\U0001f600"])
def test_a_cut_keeps_characters_whole(run: Run, case: str, letters: str) -> None:
    command = f"python3 -c \"print('{letters}'*6000)\""
    result = run(command, timeout=10, output_cap=1001, env={"PYTHONIOENCODING": "utf-8"})

    assert result.output_cut
    assert len(result.output.encode()) <= 1100
    assert "\ufffd" not in result.output
    left_out = int(result.output.split("[... ")[1].split()[0])
    marker = f"\n[... {left_out} bytes left out ...]\n"
    size = len(letters.encode().decode("unicode_escape").encode()) * 6000 + 1
    assert len(result.output.encode()) - len(marker) + left_out == size


def test_invalid_bytes_do_not_outgrow_the_cap(run: Run) -> None:
    result = run("head -c 3000 /dev/zero | tr '\\0' '\\377'", output_cap=3000)
    assert len(result.output.encode()) <= 3100


@pytest.mark.parametrize(
    ("timeout", "ends"),
    [
        pytest.param(-1, "refused", id="RC099-negative"),
        pytest.param(0, "refused", id="RC099-zero"),
        pytest.param(float("nan"), "refused", id="nan"),
        pytest.param(float("inf"), "refused", id="inf"),
        pytest.param("soon", "refused", id="word"),
        pytest.param(999999999, "clamped", id="RC099-huge"),
    ],
)
def test_a_timeout_is_checked_and_clamped(run: Run, timeout: float, ends: str) -> None:
    if ends == "refused":
        with pytest.raises(CommandFault, match="timeout must be"):
            run("yes", timeout=timeout, ceiling=5)
        return
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = run("yes", timeout=timeout, ceiling=5)

    assert result.timed_out
    assert result.seconds < 9
    assert len(result.output) <= 200_100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


@pytest.mark.parametrize("command", [["no-such-program", "x"], "no-such-program"])
def test_a_program_that_is_not_there_ends_with_127(run: Run, command: str) -> None:
    result = run(command)

    assert result.exit_code == 127
    assert "not found" in result.output
    assert "no-such-program" in result.output


def test_a_program_that_may_not_run_ends_with_126(run: Run, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    result = run(["./plain"])
    assert result.exit_code == 126
    assert "cannot run ./plain" in result.output


def test_cancelling_ends_it_at_once(run: Run) -> None:
    mark, cancelled = token(), threading.Event()
    timer = threading.Timer(0.3, cancelled.set)
    timer.start()
    result = run(f"echo begun; setsid sleep {mark} & sleep {mark}", timeout=60, cancelled=cancelled)
    timer.join()

    assert carriers(mark) == []
    assert result.seconds < 5
    assert (result.exit_code, result.timed_out) == (None, False)
    assert result.warnings == ("cancelled",)
    assert "begun" in result.output


@pytest.mark.parametrize(
    ("command", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("true", 0)]
)
def test_the_exit_code_is_kept(run: Run, command: str, code: int) -> None:
    assert run(command).exit_code == code


def test_streams_keep_their_order_and_input_arrives(run: Run) -> None:
    result = run("cat; echo two >&2; echo three", stdin=b"one\n" * 100_000)
    assert result.output_cut
    assert result.output.startswith("one\n")
    assert result.output.endswith("two\nthree\n")
    assert run("cat").output == ""
    assert run("true", stdin=b"x" * 1_000_000).exit_code == 0


def test_it_sees_nothing_of_the_workers_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "canary-1")
    monkeypatch.setenv("LOOPWARDEN_SECRET_KEY", "canary-2")
    monkeypatch.setenv("LD_PRELOAD", "")
    seen = dict(
        line.split("=", 1) for line in run(["env"], env={"GIVEN": "yes"}).output.splitlines()
    )

    assert seen.keys() <= {"PATH", "HOME", "LANG", "TERM", "TMPDIR", "GIVEN", "PWD", "LC_CTYPE"}
    assert (seen["GIVEN"], seen["LANG"], seen["TERM"]) == ("yes", "C.UTF-8", "dumb")
    assert str(Path(sys.executable).parent) in seen["PATH"].split(":")


def test_home_and_tmp_are_private_and_writable(run: Run) -> None:
    result = run('touch "$HOME/a" "$TMPDIR/b" && ls -A "$HOME"')
    assert result.output == "a\n"
    assert run('ls -A "$HOME"').output == ""


def test_ignored_signals_are_not_inherited(run: Run) -> None:
    assert run("(yes; echo code $? >&2) | head -1").output.splitlines()[-1] != "code 1"


def test_limits_hold(run: Run) -> None:
    result = run("ulimit -c; ulimit -n; ulimit -f")
    core, files, size = result.output.split()
    assert core == "0"
    assert int(files) <= 4096
    assert int(size) <= 2_097_152


def test_a_folder_that_is_not_there_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(CommandFault, match="cwd"):
        run("true", cwd=tmp_path / "missing")
    with pytest.raises(CommandFault, match="command"):
        run([])
    with pytest.raises(CommandFault, match="cannot be started"):
        run(["a\0b"])


def test_it_holds_in_32_threads_at_once(run: Run) -> None:
    mark = token()

    def one(number: int) -> CommandResult:
        if number % 2:
            return run(f"setsid sleep {mark} & echo {number}; sleep {mark}", timeout=2)
        return run(f"setsid sleep {mark} & echo {number}; exit {number}", timeout=60)

    threads = threading.active_count()
    files = len(list(Path("/proc/self/fd").iterdir()))
    with ThreadPoolExecutor(32) as pool:
        results = list(pool.map(one, range(32)))

    assert carriers(mark) == []
    for number, result in enumerate(results):
        assert result.output == f"{number}\n"
        assert result.timed_out if number % 2 else result.exit_code == number
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    assert threading.active_count() == threads


WORKER = """
import sys, threading
from pathlib import Path
from workers.commands import run_command
from workers.sandbox import detect
sandbox = detect(sys.argv[1])
command = "setsid sleep {0} & (setsid env -i sleep {0} &); echo up > up; sleep {0}"
def one():
    run_command(command.format(sys.argv[2]), cwd=Path.cwd(), timeout=500, sandbox=sandbox)
threading.Thread(target=one).start()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_death_of_the_worker_leaves_no_survivor(
    run: Run, request: pytest.FixtureRequest, tmp_path: Path, how: signal.Signals
) -> None:
    mark, kind = token(), "bubblewrap" if "bubblewrap" in request.node.name else "none"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    argv = [sys.executable, "-c", WORKER, kind, mark]
    with subprocess.Popen(argv, cwd=tmp_path, env=env) as worker:
        end = time.monotonic() + 20
        while not (tmp_path / "up").exists() and time.monotonic() < end:
            os.sched_yield()
        assert carriers(mark)
        worker.send_signal(how)
        worker.wait(10)

    assert gone(mark)


@pytest.mark.parametrize("number", [0, 1])
def test_a_killed_watcher_is_a_failure_not_a_hang(
    run: Run, request: pytest.FixtureRequest, number: int, tmp_path: Path
) -> None:
    boxed = "bubblewrap" in request.node.name
    victim = ["reaper.py outer", "bwrap"][number] if boxed else "reaper.py plain"
    mark = token()

    def kill() -> None:
        end = time.monotonic() + 20
        while not (tmp_path / "up").exists() and time.monotonic() < end:
            os.sched_yield()
        for pid in carriers(victim, mark):
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    result = run(f"(sleep {mark} &); echo up > up; sleep {mark}", timeout=60)
    killer.join()

    assert gone(mark)
    assert result.exit_code == 137
    assert result.seconds < 30


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        pytest.param("ok \ud83d done \udc9d", "ok \ufffd done \ufffd", id="RC047"),
        pytest.param("\ud83d\ude00", "\U0001f600", id="surrogate-pair"),
        pytest.param("\x1b[31mred\x1b[0m \x1b]0;title\x07x\x1b]8;;u\x1b\\y", "red xy", id="ansi"),
        pytest.param(b"\x9b31mred \xc2\x9b31mblue", "\ufffd31mred blue", id="c1"),
        pytest.param("a\r\nb\rc\r\r\nd\te\x00\x07\x08\x7f", "a\nb\nc\nd\te", id="controls"),
        pytest.param("cut \x1b[3", "cut ", id="cut-escape"),
        pytest.param("a\x1b]never ended\nb", "a\nb", id="open-osc"),
        pytest.param("\x1b(Bplain\x1b=", "plain", id="charset"),
        pytest.param("\x1bPdevice\x1b\\z", "z", id="device-string"),
        pytest.param(b"caf\xc3\xa9 \xe2\x82", "caf\u00e9 \ufffd", id="cut-character"),
    ],
)
def test_text_is_made_safe(raw: bytes | str, clean: str) -> None:
    assert clean_text(raw) == clean
    clean_text(raw).encode()
