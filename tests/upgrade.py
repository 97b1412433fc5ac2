"""Upgrades an installation while the workers of an older revision go on working.

`python -m tests.upgrade REVISION` (`make upgrade-drill FROM=REVISION`):

1. The old schema, an old tender and old workers, under load.
2. The new schema and a new tender beside them, more load.
3. The old tender and an old worker stop, a new one starts.
4. The last old worker stops.

Nothing may be lost, done twice or charged twice, and a pause must hold from then on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOAD = """
import django, sys
django.setup()
from tests.engine import scenes
late = {"delay_seconds": 0.3}
for n in range(int(sys.argv[2])):
    coder = [{"text": scenes.code(word), **late} for word in ("one", "two")]
    scenes.pair_task(coder, [scenes.changes("say two"), scenes.APPROVED], name=sys.argv[1] + str(n))
"""
WORKER = ["-m", "celery", "-A", "workers.app", "worker", "--pool=threads", "--concurrency=4"]
TENDER = ["manage.py", "tend"]


@contextmanager
def checkout(revision: str, folder: Path) -> Iterator[Path]:
    """The files of a revision, in a folder of their own."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), revision], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


class Plant:
    """Processes of two revisions on the same database and Redis."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("ab")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, tree: Path, argv: list[str]) -> None:
        """Start a process of a revision."""
        more = ["-n", f"{name.replace(' ', '-')}@%h"] if argv is WORKER else []
        self._processes[name] = subprocess.Popen(
            [sys.executable, *argv, *more], cwd=tree, stdout=self._log, stderr=self._log
        )

    def stop(self, name: str) -> None:
        """SIGTERM, and wait for the end."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(60)

    def __enter__(self) -> Plant:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self.stop(name)
        self._log.close()


def run(tree: Path, *argv: str) -> None:
    """Run a program of a revision to its end."""
    subprocess.run([sys.executable, *argv], cwd=tree, check=True, stdout=subprocess.DEVNULL)


def until(holds: Callable[[], bool], what: str, seconds: float = 180) -> None:
    """Wait for a state, or end with what was not reached."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"not reached: {what}")
        time.sleep(0.1)


def drill(revision: str, folder: Path) -> list[str]:
    """Carry it out. Returns what went wrong, a line each."""
    from dashboard.local.valkey import ValkeyServer

    os.environ.update(
        DJANGO_SETTINGS_MODULE="dashboard.settings",
        LOOPWARDEN_DATA=str(folder / "data"),
        LOOPWARDEN_LEASE_SECONDS="6",
        LOOPWARDEN_REPO_ROOTS="/",
    )
    os.environ.setdefault("DATABASE_URL", f"sqlite:///{folder}/drill.sqlite3")
    with checkout(revision, folder / "old") as old, ValkeyServer(folder / "redis") as redis:
        os.environ["REDIS_URL"] = redis.url
        run(old, "manage.py", "migrate", "--no-input")
        with Plant(folder / "log") as plant:
            _old_alone(plant, old)
            import django

            django.setup()
            _both(plant, old)
            return _wrongs()


def _old_alone(plant: Plant, old: Path) -> None:
    for name, argv in (("old tender", TENDER), ("old 1", WORKER), ("old 2", WORKER)):
        plant.start(name, old, argv)
    run(old, "-c", LOAD, "before", "8")


def _both(plant: Plant, old: Path) -> None:
    from loops.models import Run

    until(lambda: Run.objects.filter(attempt_no__gt=1).exists(), "the old workers work")
    run(ROOT, "manage.py", "migrate", "--no-input")
    plant.start("new tender", ROOT, TENDER)
    run(ROOT, "-c", LOAD, "during", "8")
    run(old, "-c", LOAD, "oldweb", "4")
    plant.stop("old tender")
    plant.start("new 1", ROOT, WORKER)
    plant.stop("old 1")
    run(ROOT, "-c", LOAD, "after", "4")
    until(lambda: Run.objects.filter(status="running").exists(), "load")
    plant.stop("old 2")
    run(ROOT, "manage.py", "pause", "--all", "--why", "the drill")
    run(ROOT, "-c", LOAD, "paused", "2")
    until(lambda: not Run.objects.filter(status="running").exists(), "a pause lets attempts finish")
    if Run.objects.filter(task__title__startswith="paused").exclude(attempt_no=1).exists():
        sys.exit("a paused run was carried out")
    run(ROOT, "manage.py", "resume", "--all")
    live = ("queued", "running", "at_gate")
    until(lambda: not Run.objects.filter(status__in=live).exists(), "every run ends")


def _wrongs() -> list[str]:
    from loops.models import Reservation, Run

    found = []
    for one in Run.objects.select_related("task"):
        charged = Reservation.objects.filter(run=one, state__in=["settled", "unknown"]).count()
        attempts = list(one.attempts.order_by("no").values_list("no", "counted"))
        facts = {
            "status": (one.status, "succeeded"),
            "attempts": (attempts, [(1, True), (2, True)]),
            "steps": (one.steps.filter(status="done").count(), 4),
            "cost": (one.used.cost_microusd, 3_000 * charged),
            "calls": (one.used.model_calls, charged),
            "reserved": (one.reserved.cost_microusd, 0),
        }
        pairs = {name: pair for name, pair in facts.items() if pair[0] != pair[1]}
        found += [f"{one.task}: {name} {pair[0]}, not {pair[1]}" for name, pair in pairs.items()]
    count = Run.objects.count()
    return found if count == 26 else [*found, f"{count} runs of 26"]


def main() -> None:
    """Carry it out on a database of its own and say what came of it."""
    with tempfile.TemporaryDirectory(prefix="lw-upgrade-") as folder:
        began = time.monotonic()
        wrongs = drill(sys.argv[1], Path(folder))
        print(f"26 runs, {len(wrongs)} wrong, {time.monotonic() - began:.0f} s", *wrongs, sep="\n")
    sys.exit(bool(wrongs))


if __name__ == "__main__":
    main()
