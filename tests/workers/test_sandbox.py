"""What a command must not reach, and what has to work all the same."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from loops.core.effects import CommandResult
from tests.workers.conftest import START, sh
from workers import sandbox as module
from workers.commands import run_command
from workers.control import ControlRepo
from workers.hidden import HIDDEN_TREES
from workers.sandbox import Sandbox, SandboxUnavailable, detect
from workers.source import inspect_source

try:
    BUBBLEWRAP = detect("bubblewrap")
except SandboxUnavailable as unavailable:
    pytest.skip(str(unavailable), allow_module_level=True)


PLACES = (Path.cwd(), Path.home(), Path("/opt"), Path("/srv"))


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder outside of the places that are hidden anyway, wherever this checkout lies."""
    seen = [p for p in PLACES if not any(p.is_relative_to(tree) for tree in HIDDEN_TREES)]
    where = next(p for p in seen if os.access(p, os.W_OK))
    with tempfile.TemporaryDirectory(prefix=".sandbox-test-", dir=where) as folder:
        yield Path(folder).resolve()


@pytest.fixture
def workspace(place: Path) -> Path:
    path = place / "data" / "runs" / "1" / "ws" / "1-a"
    path.mkdir(parents=True)
    (place / "data" / "db.sqlite3").write_text("canary")
    return path


@pytest.fixture
def box(place: Path, workspace: Path) -> Sandbox:
    return BUBBLEWRAP.confine(workspace, hidden=[place / "data"])


def go(box: Sandbox, command: str, cwd: Path | None = None, timeout: float = 60) -> CommandResult:
    where = cwd or box.workspace
    assert where is not None
    return run_command(command, cwd=where, timeout=timeout, sandbox=box)


def test_the_workspace_is_writable_and_the_rest_is_not(
    box: Sandbox, workspace: Path, place: Path
) -> None:
    (place / "theirs").write_text("theirs")
    result = go(
        box,
        f"echo in > in; mkdir d; echo no > {place}/theirs; echo no > {place}/new; "
        f"ln -s {place}/theirs link; echo no > link; ln {place}/theirs hard; rm -f {place}/theirs; "
        "touch /usr/x /etc/x /root/x; echo done",
    )

    assert (workspace / "in").read_text() == "in\n"
    assert (place / "theirs").read_text() == "theirs"
    assert not (place / "new").exists()
    assert result.output.endswith("done\n")


def test_the_data_folder_is_hidden_but_for_what_must_be_read(
    box: Sandbox, workspace: Path, place: Path
) -> None:
    objects = place / "data" / "runs" / "1" / "objects"
    objects.mkdir()
    (objects / "o").write_text("object")
    assert "canary" not in go(box, f"cat {place}/data/db.sqlite3; ls {place}/data/runs/1").output
    allowed = box.confine(workspace, hidden=[place / "data"], readable=[objects])
    result = go(allowed, f"cat {objects}/o; touch {objects}/no; ls {place}/data")

    assert result.output.startswith("object")
    assert not (objects / "no").exists()
    assert "db.sqlite3" not in result.output


def test_secrets_of_the_home_are_hidden_and_tools_in_it_are_not(
    box: Sandbox, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = place / "home"
    for name in (".ssh/id", ".aws/credentials", ".config/gcloud/key", ".tools/bin", ".netrc"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("tool" if "tools" in name else "canary")
    (home / ".real").write_text("canary")
    (home / ".npmrc").symlink_to(home / ".real")
    monkeypatch.setenv("HOME", str(home))
    result = go(box, f"cd {home}; cat .tools/bin; cat .ssh/* .aws/* .config/gcloud/* .netrc .npmrc")

    assert result.output.startswith("tool")
    assert "canary" not in result.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could read it at all")
def test_system_secrets_are_hidden(box: Sandbox) -> None:
    result = go(box, "cat /etc/shadow; ls -A /etc/ssh")
    assert "root:" not in result.output
    assert "ssh_host" not in result.output


def test_there_is_no_network_and_no_socket_of_the_host(box: Sandbox) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX) as local,
    ):
        local.bind(f"{folder}/s")
        local.listen()
        port = server.getsockname()[1]
        program = (
            "import socket\n"
            f"for family, kind, to in ((2, 1, ('127.0.0.1', {port})), (1, 1, '{folder}/s'),\n"
            "                         (2, 2, ('192.0.2.1', 53))):\n"
            "    s = socket.socket(family, kind)\n"
            "    try: s.connect(to); s.send(b'x'); print('REACHED', to)\n"
            "    except OSError: print('denied')\n"
        )
        result = go(box, f'{sys.executable} -c "{program}"')
        netted = go(
            box.confine(box.workspace or Path(), network=True),
            f'{sys.executable} -c "{program}"',
        )

    assert result.output == "denied\n" * 3
    assert "REACHED" in netted.output.splitlines()[0]


def test_processes_of_the_host_are_out_of_reach(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "canary")
    result = go(box, "ls -d /proc/[0-9]* | wc -l; cat /proc/*/environ | tr '\\0' '\\n'; id -u")

    assert int(result.output.split()[0]) < 10
    assert "canary" not in result.output
    assert result.output.splitlines()[-1] == str(os.geteuid())


@pytest.mark.parametrize(
    "command",
    [
        "unshare -Ur true", "mount -t tmpfs t /mnt", "mount -o remount,rw /", "umount /tmp",
        "umount -l /proc", "mknod x b 8 0", "chroot / true", "dmesg -c",
    ],
)  # fmt: skip
def test_it_cannot_loosen_the_box(box: Sandbox, command: str) -> None:
    result = go(box, command)
    assert result.exit_code not in (None, 0)


def test_files_and_memory_are_limited(box: Sandbox, workspace: Path) -> None:
    limited = box.confine(workspace, memory_bytes=300_000_000)
    memory = go(limited, f"{sys.executable} -c 'x = bytearray(500_000_000)'")
    size = go(box, f"{sys.executable} -c \"open('f', 'wb').truncate(3_000_000_000)\"")

    assert int(go(box, "ulimit -u").output) <= 4096
    assert "MemoryError" in memory.output
    assert not memory.passed
    assert not size.passed
    assert "dumped" not in size.output
    assert (workspace / "f").stat().st_size == 0


def test_the_tools_of_this_environment_work(box: Sandbox, workspace: Path) -> None:
    (workspace / "test_x.py").write_text("def test_x(tmp_path):\n    assert tmp_path.exists()\n")
    (workspace / "pyproject.toml").write_text("[tool.ruff]\n[tool.pytest.ini_options]\n")
    result = go(box, "ruff check . && pytest -q -p no:cacheprovider")
    assert result.passed, result.output
    assert "1 passed" in result.output


def test_git_works_in_a_workspace_whose_objects_are_elsewhere(place: Path) -> None:
    repo = place / "repo"
    repo.mkdir()
    sh(START + "echo 1 > a; git add .; git commit -qm base", repo)
    control = ControlRepo(place / "data" / "runs" / "1" / "control.git")
    control.create_from(inspect_source(repo, roots=[place]))
    workspace = place / "data" / "runs" / "1" / "ws" / "1-a"
    control.checkout(control.base, workspace)
    box = BUBBLEWRAP.confine(workspace, hidden=[place / "data"], readable=[control.objects])
    result = go(box, "echo 2 > a; git status --porcelain; git commit -qam x; git log --format=%s")
    harm = go(
        box, f"rm -rf {control.objects}; echo x > {control.folder}/config; ls {control.folder}"
    )

    assert result.output == " M a\nx\nbase\n"
    assert control.has(control.base)
    assert "HEAD" not in harm.output


def test_a_subfolder_may_be_the_working_folder(box: Sandbox, workspace: Path) -> None:
    (workspace / "sub").mkdir()
    result = go(box, "pwd; touch ../up", workspace / "sub")
    assert result.output == f"{workspace}/sub\n"
    assert (workspace / "up").exists()


def test_secrets_given_to_a_command_are_not_on_any_command_line(box: Sandbox) -> None:
    assert box.workspace is not None
    result = run_command(
        "cat /proc/*/cmdline | tr '\\0' '\\n'; echo $KEY",
        cwd=box.workspace, timeout=20, sandbox=box, env={"KEY": "canary"},
    )  # fmt: skip
    assert result.output.count("canary") == 1
    assert result.output.endswith("canary\n")


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bubblewrap that may not make namespaces."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'no permission to create a namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(module, "_candidates", lambda: [str(fake)])
    monkeypatch.setattr(module, "_found", None)


def test_a_demanded_sandbox_that_does_not_work_is_an_error(broken: None) -> None:
    with pytest.raises(SandboxUnavailable, match="no permission to create a namespace") as caught:
        detect("bubblewrap")
    assert "LOOPWARDEN_SANDBOX" in str(caught.value)


def test_without_one_the_label_says_so(broken: None) -> None:
    found = detect("auto")
    assert not found.is_sandbox
    assert found.label.startswith("no sandbox: commands run as the worker's user")
    assert "no permission" in found.label
    assert detect("none").label == "no sandbox: commands run as the worker's user"


def test_a_box_that_leaks_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setattr(module, "_candidates", lambda: [str(fake)])
    monkeypatch.setattr(module, "_found", None)
    assert not detect("auto").is_sandbox


def test_the_choice_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    detect("auto")
    monkeypatch.setattr(module, "_candidates", list)
    assert detect("auto") is detect("bubblewrap")
