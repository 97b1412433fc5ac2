"""`manage.py submit` as a person uses it: a real process, a real stack, real repositories."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from dashboard.local.ports import free_port
from tests.engine import scenes

ROOT = Path(__file__).resolve().parent.parent.parent


class Shell:
    """Runs commands of the product on a data folder of its own."""

    def __init__(self, data: Path) -> None:
        self.data = data
        kept = {k: v for k, v in os.environ.items() if not k.startswith("LOOPWARDEN_")}
        for name in ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE"):
            kept.pop(name, None)
        self.env = {**kept, "LOOPWARDEN_DATA": str(data), "LOOPWARDEN_PORT": str(free_port())}

    def __call__(self, *args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *args],
            cwd=cwd,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """One data folder for all commands here: migrating is the slow part."""
    return Shell(tmp_path_factory.mktemp("data"))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository whose check fails until a line is removed."""
    return scenes.repository(tmp_path / "app", **{"calc.py": "import badger\n"})


BAD: Mapping[str, tuple[list[str], str]] = {
    "unknown pattern": (
        ["chek_fix"],
        "pattern: unknown pattern 'chek_fix'; did you mean check_fix?",
    ),
    "limit below one": (
        ["check_fix", "--repo", "app", "--check", "true", "--fix", "true", "--max-iterations", "0"],
        "limits.iterations: must be a whole number of at least 1, not 0",
    ),
    "misspelt field": (
        ["check_fix", "--repo", "app", "--check", "true", "--set", "chekcs=x"],
        "spec.chekcs: there is no such field; did you mean checks?",
    ),
    "no such folder": (
        ["check_fix", "--repo", "nowhere", "--check", "true", "--fix", "true"],
        "does not exist",
    ),
    "no repository": (
        ["check_fix", "--repo", "plain", "--check", "true", "--fix", "true"],
        "is no git repository: run git init and commit, or name another one",
    ),
    "no commit": (
        ["check_fix", "--repo", "empty", "--check", "true", "--fix", "true"],
        "has no commit yet: make a first commit, then submit again",
    ),
    "no agent": (
        ["check_fix", "--repo", "app", "--check", "true"],
        "agents.fixer: is missing",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_it_says_what_is_wrong_with_its_field_and_stores_nothing(
    name: str, shell: Shell, repo: Path
) -> None:
    (repo.parent / "plain").mkdir()
    subprocess.run(["git", "init", "-q", "empty"], cwd=repo.parent, check=True)
    args, sentence = BAD[name]
    done = shell("submit", *args, cwd=repo.parent)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert "submitted" not in done.stdout


def test_titles_problems_and_sentences_cannot_steer_the_terminal(
    shell: Shell, tmp_path: Path
) -> None:
    contract = ["contract", "--set", "builder=retry_feature"]
    title = ["--title", "a\x1b[31m\nT-9 submitted: b\u202ec"]
    done = shell("submit", *contract, *title, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "submitted: a\\x1b[31m T-9 submitted: b\\u202ec\n" in done.stdout
    wrong = ["--set", "x\x1b]0;t\x07=1", "--project", "typo"]
    refused = shell("submit", *contract, *wrong, cwd=tmp_path)
    assert refused.returncode == 2
    assert "spec.x\\x1b]0;t\\x07: there is no such field" in refused.stderr
    assert not {"\x1b", "\u202e", "\x07"} & {*done.stdout, *refused.stderr}
    assert "typo" not in shell("project", "list", cwd=tmp_path).stdout


def test_a_spec_file_is_strict_json(shell: Shell, tmp_path: Path) -> None:
    for text, said in [
        ('{"builder": "a", "builder": "b"}', "the key 'builder' stands there twice"),
        ('{"builder": NaN}', "not JSON compliant"),
        ("[" * 100_000, "nested too deeply"),
    ]:
        (tmp_path / "spec.json").write_text(text)
        done = shell("submit", "contract", "--spec", "spec.json", cwd=tmp_path)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
        assert "Traceback" not in done.stderr


def test_it_refuses_a_repository_outside_of_the_folders_that_are_set(
    shell: Shell, repo: Path, tmp_path: Path
) -> None:
    roots = str(tmp_path / "other")
    args = ["submit", "check_fix", "--repo", "app", "--check", "true", "--fix", "true"]
    done = shell(*args, cwd=repo.parent, LOOPWARDEN_REPO_ROOTS=roots)
    assert done.returncode == 2
    assert "LOOPWARDEN_REPO_ROOTS" in done.stderr


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"LOOPWARDEN_PROT": "1"}, "unknown setting LOOPWARDEN_PROT; did you mean LOOPWARDEN_PO"),
        ({"LOOPWARDEN_PORT": "many"}, "LOOPWARDEN_PORT must be a whole number from 1 to 65535"),
        ({"LOOPWARDEN_DATA": "/proc/nowhere"}, "LOOPWARDEN_DATA: cannot write to /proc/nowhere"),
        ({"LOOPWARDEN_SANDBOX": "cage"}, "LOOPWARDEN_SANDBOX must be one of"),
    ],
)
def test_a_wrong_setting_stops_it_in_one_sentence(
    env: dict[str, str], sentence: str, shell: Shell, tmp_path: Path
) -> None:
    done = shell("submit", "one_pass", cwd=tmp_path, **env)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.worker
@pytest.mark.parametrize(
    ("check", "fix", "more", "status", "said"),
    [
        ("! grep badger calc.py", "sed -i /badger/d calc.py", [], 0, "take the branch:"),
        (
            "false",
            "date +%N >> calc.py",
            ["--max-iterations", "1"],
            3,
            "check_fix exceeded MAX_CHECK_FIX_ITERATIONS",
        ),
        ("false", "true", ["--on-limit", "gate"], 4, "No fix changed anything."),
        ("no-such-linter .", "true", [], 1, "no-such-linter"),
    ],
    ids=["success", "limit", "person", "failed"],
)
def test_with_wait_it_starts_what_is_needed_and_ends_with_the_outcome(
    check: str, fix: str, more: list[str], status: int, said: str, shell: Shell, repo: Path
) -> None:
    args = ["submit", "check_fix", "--repo", "app", "--check", check, "--fix", fix, "--wait", *more]
    done = shell(*args, cwd=repo.parent)
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout
    assert "attempt 1 claimed by" in done.stdout


@pytest.mark.worker
def test_it_takes_uncommitted_changes_along_only_when_asked(shell: Shell, repo: Path) -> None:
    (repo / "new.py").write_text("x = 1\n")
    args = ["submit", "check_fix", "--repo", "app", "--check", "test -f new.py", "--fix", "true"]
    without = shell(*args, "--wait", cwd=repo.parent)
    assert (without.returncode, "uncommitted changes" in without.stdout) == (3, True)
    along = shell(*args, "--include-dirty", "--wait", cwd=repo.parent)
    assert along.returncode == 0
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=repo, capture_output=True, text=True, check=True
    )
    assert status.stdout == "?? new.py\n"


def test_a_full_or_read_only_database_is_said_and_nothing_is_stored(
    shell: Shell, repo: Path, tmp_path: Path
) -> None:
    args = ["submit", "check_fix", "--repo", "app", "--check", "true", "--fix", "true"]
    url = f"sqlite:///{tmp_path}/full.sqlite3"
    assert shell(*args, cwd=repo.parent, DATABASE_URL=url).returncode == 0
    size = (tmp_path / "full.sqlite3").stat().st_size // 4096
    code = f"import django; django.setup(); from django.db import connection as c; {_FULL % size}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**shell.env, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "dashboard.settings"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "database or disk is full. Nothing was stored." in done.stderr, done.stderr


# A page limit makes SQLite answer as on a full disk, for root too.
_FULL = (
    "c.ensure_connection(); c.cursor().execute('PRAGMA max_page_count=%d');"
    " from django.core.management import call_command as call;"
    " from dashboard.management import submitting; submitting.prepare_database = lambda: None;"
    " call('submit', 'contract', title='x' * 200, set=['builder=retry_feature',"
    " 'arguments=' + '{' + ' ' * 9000 + '}'])"
)
