from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import redis

from dashboard.local import valkey
from dashboard.local.errors import CannotStart
from dashboard.local.sockets import SHORT_ROOT, socket_path
from dashboard.local.valkey import ValkeyServer, find_binary
from dashboard.local.waiting import until
from tests.dashboard.local.support import WAIT_SECONDS, alive, gone, read_pid


@contextmanager
def client(server: ValkeyServer) -> Iterator[redis.Redis]:
    one = redis.Redis.from_url(server.url, decode_responses=True)
    try:
        yield one
    finally:
        one.close()


def test_it_is_durable_and_never_evicts(tmp_path: Path) -> None:
    with ValkeyServer(tmp_path) as server, client(server) as one:
        assert one.config_get("appendonly") == {"appendonly": "yes"}
        assert one.config_get("appendfsync") == {"appendfsync": "everysec"}
        assert one.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert one.config_get("port") == {"port": "0"}


def test_its_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    with ValkeyServer(tmp_path):
        assert stat.S_IMODE(socket_path(tmp_path).stat().st_mode) == 0o700


def test_it_keeps_its_data_over_a_restart(tmp_path: Path) -> None:
    with ValkeyServer(tmp_path) as server, client(server) as one:
        one.set("queued", "work")
    with ValkeyServer(tmp_path) as server, client(server) as one:
        assert one.get("queued") == "work"


def test_it_keeps_its_data_when_it_is_killed(tmp_path: Path) -> None:
    with ValkeyServer(tmp_path) as server, client(server) as one:
        one.set("queued", "work")
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert until(lambda: not server.alive(), seconds=WAIT_SECONDS)
        # The socket file of the dead server is in the way now.
        server.start()
        assert one.get("queued") == "work"


def test_a_server_that_answers_is_used_and_left_alone(tmp_path: Path) -> None:
    with ValkeyServer(tmp_path) as server:
        with ValkeyServer(tmp_path) as second:
            assert second.pid is None
            assert second.alive()
        assert server.answers()


def test_it_waits_for_a_server_that_is_still_ending(tmp_path: Path) -> None:
    with ValkeyServer(tmp_path) as server:
        assert server.pid is not None
        # A stopped process neither answers nor lets go of its folder.
        os.kill(server.pid, signal.SIGSTOP)
        killing = f"sleep 0.3; kill -9 {server.pid}"
        with subprocess.Popen(["sh", "-c", killing]), ValkeyServer(tmp_path) as second:
            assert second.pid not in (None, server.pid)
            assert second.answers()


def test_a_server_that_neither_answers_nor_ends_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(valkey, "READY_SECONDS", 0.1)
    (tmp_path / "valkey").mkdir()
    with (tmp_path / "valkey" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CannotStart, match="does not answer"):
            ValkeyServer(tmp_path).start()


def test_it_stops_for_good(tmp_path: Path) -> None:
    with ValkeyServer(tmp_path) as server:
        pid = server.pid
    assert pid is not None
    assert not alive(pid)
    assert not socket_path(tmp_path).exists()


def test_it_dies_with_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal; from dashboard.local.valkey import ValkeyServer\n"
        f"ValkeyServer(pathlib.Path({str(tmp_path)!r})).start()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=False)
    assert ran.returncode == -signal.SIGKILL
    pid = tmp_path / "valkey.pid"
    # A server that ended in order has removed its pid file.
    assert not pid.exists() or gone(read_pid(pid))


def test_a_path_too_long_for_a_socket_moves_to_a_private_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 25)
    path = socket_path(folder)
    assert path.parent.parent == Path("/tmp")
    with ValkeyServer(folder) as server:
        assert server.answers()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.parent.rmdir()


def test_a_socket_folder_that_others_may_use_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 25)
    parent = socket_path(folder).parent
    parent.mkdir()
    parent.chmod(0o777)
    try:
        with pytest.raises(CannotStart, match=f"not private to this user.*chmod 700 {parent}$"):
            ValkeyServer(folder).start()
        parent.chmod(0o700)
        with ValkeyServer(folder) as server:
            assert server.answers()
    finally:
        parent.rmdir()


def test_a_data_folder_that_others_may_use_is_closed_not_removed() -> None:
    with TemporaryDirectory(dir=SHORT_ROOT, prefix="lw open ") as name:
        Path(name).chmod(0o755)
        with pytest.raises(CannotStart, match=f"chmod 700 '{name}'$") as caught:
            ValkeyServer(Path(name)).start()
    assert "emove" not in str(caught.value)


def test_a_file_in_the_place_of_the_socket_folder_is_no_folder_of_ours(tmp_path: Path) -> None:
    folder = tmp_path / ("link" * 25)
    parent = socket_path(folder).parent
    parent.symlink_to(tmp_path)
    try:
        with pytest.raises(CannotStart, match=r"no folder of this user's own.*LOOPWARDEN_DATA"):
            ValkeyServer(folder).start()
    finally:
        parent.unlink()


def test_a_folder_with_odd_characters_works(tmp_path: Path) -> None:
    with ValkeyServer(tmp_path / "a b?c#d%20é") as server, client(server) as one:
        assert one.ping()


def test_an_exotic_locale_does_not_stop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "tlh_KX.UTF-8")
    with ValkeyServer(tmp_path) as server:
        assert server.answers()


def test_the_error_of_a_failed_start_has_the_last_log_lines(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho the disk is on fire\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(CannotStart, match="the disk is on fire"):
        ValkeyServer(tmp_path, binary=broken).start()


def test_without_a_server_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey, "_wheel_binary", lambda: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(CannotStart, match="set REDIS_URL"):
        find_binary()


def test_a_server_on_path_is_the_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey, "_wheel_binary", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "redis-server"
    program.symlink_to("/bin/true")
    assert find_binary() == program
