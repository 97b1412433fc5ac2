from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dashboard.local.processes import Process
from tests.dashboard.local.support import alive, gone, read_pid

FOREVER = "import signal; signal.pause()"


def test_it_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from dashboard.local.processes import Process\n"
        f"argv = [sys.executable, '-c', {FOREVER!r}]\n"
        f"print(Process(argv, log=Path({str(tmp_path)!r}, 'log')).pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert gone(int(ran.stdout))


def test_stopping_it_ends_what_it_started(tmp_path: Path) -> None:
    code = (
        "import pathlib, signal, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {FOREVER!r}])\n"
        f"pathlib.Path({str(tmp_path)!r}, 'pid').write_text(str(child.pid))\n"
        "signal.pause()"
    )
    process = Process([sys.executable, "-c", code], log=tmp_path / "log")
    grandchild = read_pid(tmp_path / "pid")
    assert alive(grandchild)
    process.stop(5)
    assert process.ended() is not None
    assert gone(grandchild)


def test_its_output_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    program = "import sys; print('out', flush=True); sys.exit('err')"
    process = Process([sys.executable, "-c", program], log=log)
    assert gone(process.pid)
    assert process.ended() == 1
    assert log.read_text() == "before\nout\nerr\n"


def test_another_thread_is_refused(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def start() -> None:
        try:
            Process(["true"], log=tmp_path / "log")
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert [str(error) for error in errors] == ["start processes from the main thread"]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_ending_it_twice_is_harmless(tmp_path: Path, how: str) -> None:
    process = Process([sys.executable, "-c", FOREVER], log=tmp_path / "log")
    process.stop(5)
    process.kill() if how == "kill" else process.stop(5)
    assert not alive(process.pid)
