from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dashboard.local.errors import CannotStart, ChildFailed
from dashboard.local.keeper import RestartPolicy
from dashboard.local.lock import LOCK_NAME
from dashboard.local.ports import answers, free_port
from dashboard.local.sockets import socket_path
from dashboard.local.supervisor import Child, Supervisor
from dashboard.local.valkey import ValkeyServer
from dashboard.local.waiting import until
from tests.dashboard.local.support import WAIT_SECONDS, alive, driver, gone, started


def test_it_starts_everything_and_stops_it_in_order(tmp_path: Path) -> None:
    with started(tmp_path) as one:
        pids = one.pids()
        assert all(map(alive, pids))
        assert answers("127.0.0.1", one.port)
        assert one.end(signal.SIGTERM) == 0
        assert one.said() == "stopped\n"
    assert not any(map(alive, pids))
    assert (tmp_path / "stopped").read_text().split() == ["web", "tend", "worker"]
    assert not socket_path(tmp_path).exists()


def test_it_stops_on_ctrl_c(tmp_path: Path) -> None:
    with started(tmp_path) as one:
        pids = one.pids()
        assert one.end(signal.SIGINT) == 0
    assert not any(map(alive, pids))


def test_its_children_do_not_share_its_process_group(tmp_path: Path) -> None:
    with started(tmp_path) as one:
        groups = {os.getpgid(pid) for pid in one.pids()}
        assert os.getpgid(one.process.pid) not in groups
        assert len(groups) == len(one.pids())


def test_it_leaves_nothing_when_it_is_killed(tmp_path: Path) -> None:
    with started(tmp_path) as one:
        pids = one.pids()
        one.end(signal.SIGKILL)
        assert gone(*pids)


def test_it_starts_again_on_what_a_killed_one_left(tmp_path: Path) -> None:
    with started(tmp_path) as one:
        first = one.pids()
        one.end(signal.SIGKILL)
    with started(tmp_path) as one:
        assert gone(*first)
        assert until(lambda: all(map(alive, one.pids())), seconds=WAIT_SECONDS)
        assert one.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("name", ["web", "tend", "worker", "valkey"])
def test_it_restarts_what_died(tmp_path: Path, name: str) -> None:
    with started(tmp_path) as one:
        before = one.pid_of(name)
        os.kill(before, signal.SIGKILL)
        assert gone(before)
        assert until(
            lambda: one.pid_of(name) != before and alive(one.pid_of(name)), seconds=WAIT_SECONDS
        )
        assert one.end(signal.SIGTERM) == 0


def test_it_gives_up_on_a_child_that_dies_again_and_again(tmp_path: Path) -> None:
    with driver(tmp_path, worker="fail") as one:
        assert one.process.wait(WAIT_SECONDS) == 1
        said = one.said()
        pids = [one.pid_of("web"), one.pid_of("tend")]
    assert "worker died 4 times in a row" in said
    assert "worker: no such thing as a module" in said
    assert not any(map(alive, pids))
    assert not (tmp_path / "valkey.pid").exists()
    assert len((tmp_path / "worker.starts").read_text().split()) == 4


def test_it_kills_a_child_that_does_not_stop_in_its_grace(tmp_path: Path) -> None:
    with started(tmp_path, worker="stubborn") as one:
        pids = one.pids()
        assert one.end(signal.SIGTERM) == 0
    assert not any(map(alive, pids))


def test_a_second_signal_kills_at_once(tmp_path: Path) -> None:
    with started(tmp_path) as one:
        pids = one.pids()
        # A stopped process does not act on SIGTERM, so the worker's grace of 60 s would be used.
        os.kill(one.pid_of("worker"), signal.SIGSTOP)
        one.process.send_signal(signal.SIGINT)
        assert gone(one.pid_of("tend"))
        assert one.end(signal.SIGINT) == 128 + signal.SIGINT
        assert gone(*pids)


def test_it_refuses_a_second_supervisor_on_the_same_folder(tmp_path: Path) -> None:
    with started(tmp_path) as one:
        running = Supervisor.running(tmp_path)
        assert running is not None
        assert running.pid == one.process.pid
        assert running.address == f"http://127.0.0.1:{one.port}"
        with driver(tmp_path) as other:
            assert other.process.wait(WAIT_SECONDS) == 1
            said = other.said()
        assert f"process {one.process.pid} at http://127.0.0.1:{one.port}" in said
        assert all(map(alive, one.pids()))
        one.end(signal.SIGTERM)
    assert Supervisor.running(tmp_path) is None


def test_the_lock_of_a_dead_supervisor_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text(f'{{"pid": {os.getpid()}, "address": "http://old"}}')
    assert Supervisor.running(tmp_path) is None
    with started(tmp_path) as one:
        assert one.end(signal.SIGTERM) == 0


def test_it_refuses_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with driver(tmp_path, port=port) as one:
            assert one.process.wait(WAIT_SECONDS) == 1
            said = one.said()
    assert f"cannot use port {port} on 127.0.0.1" in said
    assert "LOOPWARDEN_PORT" in said
    assert not (tmp_path / "valkey.pid").exists()


def test_it_refuses_a_data_folder_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    supervisor = Supervisor(file, children=(), port=free_port())
    with pytest.raises(CannotStart, match="LOOPWARDEN_DATA"), supervisor:
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user without rights")
def test_it_refuses_a_data_folder_that_it_may_not_write_to() -> None:
    # Not under pytest's folder, which other users cannot even enter.
    folder = Path("/tmp") / f"loopwarden-test-readonly-{os.getpid()}"
    folder.mkdir(mode=0o555)
    code = (
        "import os, sys, pathlib; from dashboard.local.supervisor import Supervisor\n"
        "os.setuid(65534)\n"
        f"with Supervisor(pathlib.Path({str(folder)!r}), children=(), port=1): pass"
    )
    try:
        ran = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
    finally:
        folder.rmdir()
    assert f"cannot write to {folder}: Permission denied" in ran.stderr
    assert "LOOPWARDEN_DATA" in ran.stderr


def test_it_uses_a_given_redis_and_leaves_it_running(tmp_path: Path) -> None:
    with ValkeyServer(tmp_path / "given") as server, started(tmp_path, redis_url=server.url) as one:
        assert one.end(signal.SIGTERM) == 0
        assert server.answers()
    assert not (tmp_path / "valkey.pid").exists()


def test_it_refuses_a_given_redis_that_does_not_answer(tmp_path: Path) -> None:
    with driver(tmp_path, redis_url=f"redis://127.0.0.1:{free_port()}/0") as one:
        assert one.process.wait(WAIT_SECONDS) == 1
        assert "REDIS_URL: no answer from redis://127.0.0.1" in one.said()


def test_a_failing_preparation_stops_what_was_started(tmp_path: Path) -> None:
    def fail() -> None:
        raise CannotStart("no such table")

    supervisor = Supervisor(tmp_path, children=(), port=free_port(), prepare=fail)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(CannotStart, match="no such table"), supervisor:
        pass
    assert not socket_path(tmp_path).exists()
    assert Supervisor.running(tmp_path) is None
    assert signal.getsignal(signal.SIGTERM) is before


def test_children_find_the_redis_in_their_environment(tmp_path: Path) -> None:
    program = "import os; print(os.environ['REDIS_URL'], os.environ['EXTRA'], flush=True)"
    child = Child(name="one", argv=(sys.executable, "-c", program))
    supervisor = Supervisor(
        tmp_path, children=(child,), port=free_port(), env={"EXTRA": "here"}, policy=RestartPolicy()
    )
    with supervisor:
        log = supervisor.log_of("one")
        assert until(lambda: log.read_text() != "", seconds=WAIT_SECONDS)
        assert log.read_text().splitlines()[0] == f"{supervisor.redis_url} here"


def test_it_says_what_did_not_become_ready(tmp_path: Path) -> None:
    with (
        Supervisor(tmp_path, children=(), port=free_port()) as supervisor,
        pytest.raises(ChildFailed, match=r"no sign of a page at http://127.0.0.1:\d+ after 0\.1 s"),
    ):
        supervisor.wait_ready(0.1)


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    assert shutil.which("no-such-program") is None
    child = Child(name="one", argv=("no-such-program",))
    supervisor = Supervisor(tmp_path, children=(child,), port=free_port())
    with pytest.raises(CannotStart, match="cannot start no-such-program"), supervisor:
        pass
    assert not socket_path(tmp_path).exists()
