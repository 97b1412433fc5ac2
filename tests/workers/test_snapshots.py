"""Undo takes back exactly what the agent did, and nothing that anybody else did."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from loops.core.errors import WorkspaceFault
from tests.workers.conftest import START, bare_control, fingerprint, sh
from workers.result import diff, review_packet, summary
from workers.snapshots import Snapshot, Snapshotter
from workers.staging import TooLarge

COMMITTED = "printf 'x=1\\n' > app.py; git add .; git commit -qm base"

# id, setup after `git init`, agent, what the user does meanwhile, check after undo
CASES = [
    (
        "RC102",
        "printf 'one\\n' > a.txt; printf 'two\\n' > b.txt; git add .; git commit -qm base; "
        "printf 'two\\nmy unsaved line\\n' > b.txt",
        "printf 'ONE\\n' > a.txt",
        "",
        "[ \"$(cat a.txt)\" = one ] && grep -q 'my unsaved line' b.txt",
    ),
    (
        "RC104",
        "printf '*.log\\n' > .gitignore; printf 'x=1\\n' > app.py; git add .; git commit -qm base; "
        "printf 'local/\\n' >> .gitignore; mkdir local; printf 'k=v\\n' > local/keys.txt",
        "printf 'x=2\\n' > app.py",
        "",
        "[ \"$(cat app.py)\" = x=1 ] && grep -qx 'local/' .gitignore "
        '&& [ "$(cat local/keys.txt)" = k=v ]',
    ),
    (
        "RC106",
        COMMITTED,
        "printf 'x=2\\n' > app.py",
        "printf 'note\\n' > user.txt; git add user.txt; git commit -qm 'user work'",
        '[ "$(cat app.py)" = x=1 ] && [ "$(git log -1 --format=%s)" = \'user work\' ] '
        '&& [ "$(cat user.txt)" = note ]',
    ),
    (
        "RC108",
        "printf 'one\\n' > a.txt; git add .; git commit -qm base; "
        "printf 'one\\ndirty\\n' > a.txt; printf 'u\\n' > untracked.txt",
        "true",
        "",
        'grep -q dirty a.txt && [ "$(cat untracked.txt)" = u ]',
    ),
    (
        "RC110",
        COMMITTED,
        "mkdir -p a/b; printf 'n\\n' > a/b/new.py; printf 'n\\n' > top.py; git add top.py",
        "",
        '[ ! -e a/b/new.py ] && [ ! -e top.py ] && [ -z "$(git status --porcelain)" ]',
    ),
    (
        "RC112",
        "printf 'x=1\\n' > app.py",
        "printf 'x=2\\n' > app.py; printf 'n\\n' > extra.py",
        "",
        '[ "$(cat app.py)" = x=1 ] && [ ! -e extra.py ] '
        "&& ! git rev-parse -q --verify HEAD >/dev/null",
    ),
    (
        "RC114",
        COMMITTED,
        "mkdir web; (cd web && git init -q -b main . && git config user.email a@example.test "
        "&& git config user.name A && printf '<h1>hi</h1>\\n' > index.html "
        "&& git add . && git commit -qm scaffold)",
        "",
        '[ ! -e web ] && [ -z "$(git status --porcelain)" ]',
    ),
    (
        "RC116",
        "git config core.autocrlf false; printf 'a\\r\\nb\\r\\nc\\r\\n' > w.txt; git add .; "
        "git commit -qm base; sha256sum w.txt > ../w.sha",
        "python3 - <<'PY'\nd=open('w.txt','rb').read().replace(b'b',b'B')\n"
        "open('w.txt','wb').write(d)\nPY",
        "",
        "sha256sum --quiet -c ../w.sha",
    ),
    (
        "RC118",
        "mkdir shared; printf 'debug = 0\\n' > shared/conf.py; ln -s shared/conf.py conf.py; "
        "git add .; git commit -qm base",
        "rm conf.py; printf 'debug = 1\\n' > conf.py",
        "",
        "[ -L conf.py ] && [ \"$(cat shared/conf.py)\" = 'debug = 0' ] "
        '&& [ "$(readlink conf.py)" = shared/conf.py ]',
    ),
    (
        "RC120",
        COMMITTED + "; git config commit.gpgsign true; git config user.signingkey NOSUCHKEY; "
        "printf '#!/bin/sh\\ntouch ../hook.ran\\nexit 1\\n' > .git/hooks/pre-commit; "
        "chmod +x .git/hooks/pre-commit",
        "printf 'x=2\\n' > app.py; printf 'n\\n' > n.py",
        "",
        '[ "$(cat app.py)" = x=1 ] && [ ! -e n.py ] && [ ! -e ../hook.ran ] '
        '&& [ "$(git rev-list --count HEAD)" = 1 ]',
    ),
    (
        "RC122",
        "printf '# p\\n' > README.md; git add README.md; git commit -qm base; mkdir src; "
        'for i in 1 2 3 4 5; do printf "m$i\\n" > src/m$i.py; done',
        "printf 'agent\\n' > src/m3.py; printf 'new\\n' > src/m6.py",
        "",
        '[ "$(cat src/m3.py)" = m3 ] && [ ! -e src/m6.py ] && [ $(ls src | wc -l) -eq 5 ]',
    ),
    (
        "agent-commits",
        COMMITTED,
        "printf 'x=2\\n' > app.py; git commit -qam agent",
        "",
        '[ "$(git rev-list --count HEAD)" = 1 ] && [ -z "$(git status --porcelain)" ]',
    ),
    (
        "agent-drops-a-rule",
        "printf 'keys/\\n' > .gitignore; git add .; git commit -qm b; mkdir keys; echo k > keys/k",
        ": > .gitignore; echo n > n.py",
        "",
        '[ "$(cat keys/k)" = k ] && [ ! -e n.py ] && [ -z "$(git status --porcelain)" ]',
    ),
    (
        "agent-adds-a-rule",
        COMMITTED,
        "printf 'out/\\n' > .gitignore; mkdir out; echo o > out/o; echo n > n.py",
        "",
        '[ ! -e out ] && [ ! -e .gitignore ] && [ -z "$(git status --porcelain)" ]',
    ),
    (
        "file-becomes-folder",
        COMMITTED,
        "rm app.py; mkdir app.py; echo n > app.py/n",
        "",
        '[ "$(cat app.py)" = x=1 ]',
    ),
    (
        "folder-becomes-link",
        "mkdir d e; echo 1 > d/f; echo 2 > e/f; git add .; git commit -qm b",
        "rm -r d; ln -s e d",
        "",
        '[ ! -L d ] && [ "$(cat d/f)" = 1 ] && [ "$(cat e/f)" = 2 ]',
    ),
    (
        "mode",
        COMMITTED,
        "chmod +x app.py",
        "",
        '[ ! -x app.py ] && [ -z "$(git status --porcelain)" ]',
    ),
    (
        "odd-names",
        COMMITTED,
        "printf n > $'new\\nline'; printf q > 'a\"q'; printf b > $'caf\\xe9'; printf d > ./-n",
        "",
        '[ -z "$(git status --porcelain)" ]',
    ),
    (
        "commit-inside-a-nested-repository",
        "printf 'x=1\\n' > app.py; git add .; git commit -qm b; mkdir n; cd n; git init -q .; "
        "git config user.email a@b; git config user.name A; echo 1 > f; git add .; "
        "git commit -qm one",
        "cd n; echo 2 > f; git commit -qam two",
        "",
        '[ "$(cat n/f)" = 1 ] && [ "$(git -C n rev-list --count HEAD)" = 1 ] '
        '&& [ -z "$(git -C n status --porcelain)" ]',
    ),
    (
        "nested-repository-removed",
        "git commit -q --allow-empty -m b; mkdir n; cd n; git init -q .; "
        "git config user.email a@b; git config user.name A; echo 1 > f; git add .; "
        "git commit -qm one",
        "rm -rf n",
        "",
        '[ "$(cat n/f)" = 1 ] && [ "$(git -C n rev-list --count HEAD)" = 1 ]',
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_it_takes_back_exactly_what_the_agent_did(
    folder: Path, snapshotter: Snapshotter, case: tuple[str, str, str, str, str]
) -> None:
    _, setup, agent, meanwhile, check = case
    sh(START + setup, folder)
    before = snapshotter.snapshot()
    objects = len(list((folder / ".git/objects").rglob("*")))
    sh(agent, folder)
    after = snapshotter.snapshot()
    sh(meanwhile, folder)
    refs = sh("cat .git/HEAD; git for-each-ref", folder).stdout

    snapshotter.undo(Snapshot.load(before.dump()), Snapshot.load(after.dump()))

    done = sh(check, folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if not meanwhile:
        assert snapshotter.snapshot() == before
    if "git commit" not in agent:
        assert sh("cat .git/HEAD; git for-each-ref", folder).stdout == refs
    if "git" not in agent + meanwhile:
        assert len(list((folder / ".git/objects").rglob("*"))) == objects


def test_it_changes_no_byte_when_the_agent_changed_nothing(
    folder: Path, snapshotter: Snapshotter
) -> None:
    sh(START + CASES[3][1], folder)
    first = fingerprint(folder)
    before = snapshotter.snapshot()
    snapshotter.undo(before, snapshotter.snapshot())

    assert fingerprint(folder) == first


def test_it_stops_when_somebody_else_changed_the_same_file(
    folder: Path, snapshotter: Snapshotter
) -> None:
    sh(START + COMMITTED, folder)
    before = snapshotter.snapshot()
    sh("echo agent > app.py; echo n > n.py", folder)
    after = snapshotter.snapshot()
    sh("echo user > app.py", folder)

    with pytest.raises(WorkspaceFault, match=r"somebody else changed app\.py"):
        snapshotter.undo(before, after)
    assert (folder / "app.py").read_text() == "user\n"
    assert (folder / "n.py").exists()


def test_it_may_be_asked_twice(folder: Path, snapshotter: Snapshotter) -> None:
    sh(START + COMMITTED, folder)
    before = snapshotter.snapshot()
    sh("echo agent > app.py; echo n > n.py", folder)
    after = snapshotter.snapshot()
    snapshotter.undo(before, after)
    snapshotter.undo(before, after)

    assert snapshotter.snapshot() == before


def test_it_restores_a_folder_to_a_snapshot(folder: Path, snapshotter: Snapshotter) -> None:
    sh(START + COMMITTED, folder)
    wanted = snapshotter.snapshot()
    sh("rm app.py; mkdir -p a/b; echo n > a/b/c; git init -q web; echo h > web/h", folder)
    snapshotter.restore(wanted)

    assert snapshotter.snapshot() == wanted
    assert not (folder / "a").exists()
    assert not (folder / "web").exists()


def test_equal_content_has_an_equal_id(tmp_path: Path, folder: Path) -> None:
    sh("echo 1 > a; mkdir d; echo 2 > d/b; ln -s a l; git init -q web; echo h > web/h", folder)
    other = folder.with_name("other")
    sh(f"cp -r {folder} {other}", tmp_path)
    control = bare_control(tmp_path)
    first, second = Snapshotter(control, folder), Snapshotter(control, other)

    assert first.snapshot() == second.snapshot() == first.snapshot()


def test_it_sees_a_change_that_keeps_size_and_mtime(folder: Path, snapshotter: Snapshotter) -> None:
    sh("echo 1 > a", folder)
    facts = (folder / "a").stat()
    before = snapshotter.snapshot()
    (folder / "a").write_text("2\n")
    os.utime(folder / "a", ns=(facts.st_atime_ns, facts.st_mtime_ns))

    assert snapshotter.snapshot() != before


@pytest.mark.parametrize("name", [".GIT", "git~1", "d/.Git"])
def test_it_refuses_names_that_other_systems_take_for_a_git_dir(
    folder: Path, snapshotter: Snapshotter, name: str
) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "config").write_text("x")

    with pytest.raises(WorkspaceFault, match="git refuses"):
        snapshotter.snapshot()


@pytest.mark.parametrize("script", ["echo 1 > a; chmod 0 a", "mkdir d; echo 1 > d/a; chmod 0 d"])
def test_it_says_what_it_cannot_read(unprivileged: Path, script: str) -> None:
    folder = unprivileged / "work"
    folder.mkdir()
    sh(script, folder)
    with pytest.raises(WorkspaceFault):
        Snapshotter(bare_control(unprivileged), folder).snapshot()
    sh("chmod -R u+rwX .", folder)


def test_it_refuses_to_store_too_much(tmp_path: Path, folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"x" * 2000)
    small = Snapshotter(bare_control(tmp_path), folder, max_bytes=1000)

    with pytest.raises(TooLarge, match="2,000 bytes") as caught:
        small.snapshot()
    assert caught.value.reason == "workspace_too_large"


@pytest.mark.parametrize("case", ["RC124"])
def test_it_leaves_the_users_git_dir_small(
    case: str, folder: Path, snapshotter: Snapshotter
) -> None:
    setup = "head -c 50000000 /dev/urandom > model.bin && printf 'x=1\\n' > app.py"
    sh(START + setup, folder)
    size = _size(folder / ".git")
    for number in range(3):
        before = snapshotter.snapshot()
        (folder / "app.py").write_text(f"x={number + 2}\n")
        snapshotter.undo(before, snapshotter.snapshot())

    assert _size(folder / ".git") - size <= 1_000_000
    assert _size(snapshotter.git.git_dir) < 60_000_000
    assert not list((folder / ".git/refs/heads").iterdir())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _change(folder: Path, snapshotter: Snapshotter, setup: str, agent: str) -> tuple[str, str]:
    sh(START + setup, folder)
    before = snapshotter.snapshot()
    sh(agent, folder)
    return before.tree, snapshotter.snapshot().tree


@pytest.mark.parametrize("case", ["RC101"])
def test_a_big_file_is_named_not_shown(case: str, folder: Path, snapshotter: Snapshotter) -> None:
    agent = "python3 -c \"open('big.min.js','w').write('x'*5_000_000)\"; echo y > app.py"
    before, after = _change(folder, snapshotter, COMMITTED, agent)
    packet = review_packet(snapshotter.git, before, after)

    assert len(packet) <= 60_000
    digest = sh("sha256sum big.min.js", folder).stdout.split()[0]
    assert f"big.min.js (5000000 bytes, sha256 {digest})" in packet
    assert "+y" in packet


@pytest.mark.parametrize("case", ["RC112"])
def test_there_is_a_diff_without_any_commit(
    case: str, folder: Path, snapshotter: Snapshotter
) -> None:
    before, after = _change(folder, snapshotter, "printf 'x=1\\n' > app.py", "echo x=2 > app.py")
    assert "+x=2" in review_packet(snapshotter.git, before, after)


@pytest.mark.parametrize("case", ["RC114"])
def test_files_of_a_nested_repository_are_listed(
    case: str, folder: Path, snapshotter: Snapshotter
) -> None:
    before, after = _change(folder, snapshotter, *CASES[6][1:3])

    assert "web/index.html" in review_packet(snapshotter.git, before, after)
    assert "160000" not in snapshotter.git.line("ls-tree", "-r", after)


@pytest.mark.parametrize("case", ["RC116"])
def test_line_ends_stay_as_they_are(case: str, folder: Path, snapshotter: Snapshotter) -> None:
    before, after = _change(folder, snapshotter, *CASES[7][1:3])
    [file] = summary(snapshotter.git, before, after)

    assert (file.added, file.removed) == (1, 1)


@pytest.mark.parametrize("case", ["RC118"])
def test_a_link_that_became_a_file_is_named(
    case: str, folder: Path, snapshotter: Snapshotter
) -> None:
    before, after = _change(folder, snapshotter, *CASES[8][1:3])
    assert "type change link -> file: conf.py" in review_packet(snapshotter.git, before, after)


@pytest.mark.parametrize("case", ["RC128"])
def test_a_binary_file_does_not_break_the_patch(
    case: str, folder: Path, snapshotter: Snapshotter, tmp_path: Path
) -> None:
    agent = "head -c 3000 /dev/urandom > dump.rdb; printf 'x=2\\n' > app.py"
    before, after = _change(folder, snapshotter, COMMITTED, agent)
    packet = review_packet(snapshotter.git, before, after)
    sh("git add -A; git stash -q", folder)
    patch = diff(snapshotter.git, before, after)
    subprocess.run(["git", "apply", "--index", "-"], input=patch, cwd=folder, check=True)

    assert "x=2" in packet
    assert "dump.rdb (binary, 3000 bytes)" in packet
    assert snapshotter.snapshot().tree == after


def test_the_packet_says_what_it_leaves_out(folder: Path, snapshotter: Snapshotter) -> None:
    agent = "for i in $(seq 1500); do seq 200 > f$i; done; printf 'a\\033[2J' > esc"
    before, after = _change(folder, snapshotter, COMMITTED, agent)
    packet = review_packet(snapshotter.git, before, after)

    assert len(packet) <= 60_000
    assert "1501 file(s) changed" in packet
    assert "more files ...]" in packet
    assert "left out ...]" in packet
    assert "\x1b" not in packet


def test_gitattributes_cannot_hide_a_change(folder: Path, snapshotter: Snapshotter) -> None:
    agent = "echo '* -diff' > .gitattributes; echo evil > app.py"
    before, after = _change(folder, snapshotter, COMMITTED, agent)

    assert "+evil" in review_packet(snapshotter.git, before, after)
