"""What goes wrong: a seeded deck of faults, dealt at a steady rate.

The deck is dealt to its end before it is shuffled again, so every kind comes up. A fault that finds
nothing to hit goes back under the deck.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import redis
from django.db import connection

from loops import feed
from loops.models import Run
from tests.chaos.books import Book
from tests.chaos.stack import LEASE_SECONDS, TENDERS, WEB, WORKERS, Stack
from tests.chaos.watch import Watch
from workers.app import ITERATE, app

DECK = {
    "worker killed": 2,
    "command killed": 2,
    "tender killed": 1,
    "web killed": 1,
    "FLUSHALL": 2,
    "worker frozen past its lease": 2,
    "duplicate messages": 2,
    "stale messages": 2,
    "database sessions ended": 2,
    "PostgreSQL crashed": 1,
    "Redis killed": 1,
    "clock stepped": 1,
    "disk full": 1,
}
CLOCK_STEPS = (3_600, -3_600, 0)
DISK_FULL_SECONDS = 2.0


class Faults:
    """Call `tick` often, in the main thread: processes are started in it."""

    def __init__(self, stack: Stack, watch: Watch, seed: int, every_seconds: float) -> None:
        self.counts: Counter[str] = Counter()
        self._stack = stack
        self._watch = watch
        self._dice = random.Random(f"faults {seed}")
        self._every = every_seconds
        self._next = 0.0
        self._book = Book(stack.folder / "faults.jsonl")
        self._deck: deque[str] = deque()
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._frozen: set[str] = set()
        self._strikes: dict[str, Callable[[], bool]] = {
            "worker killed": self._kill_worker,
            "command killed": self._kill_command,
            "tender killed": lambda: self._kill(self._dice.choice(TENDERS)),
            "web killed": lambda: self._kill(WEB),
            "FLUSHALL": self._flush,
            "worker frozen past its lease": self._freeze,
            "duplicate messages": lambda: self._publish(0),
            "stale messages": lambda: self._publish(-1),
            "database sessions ended": self._end_sessions,
            "PostgreSQL crashed": self._crash_postgres,
            "Redis killed": self._kill_redis,
            "clock stepped": self._step_clock,
            "disk full": self._fill_disk,
        }

    def tick(self) -> None:
        """Undo what is over, and strike when it is time."""
        now = time.monotonic()
        over = [undo for due, undo in self._later if due <= now]
        self._later = [entry for entry in self._later if entry[0] > now]
        for undo in over:
            undo()
        if now < self._next:
            return
        if not self._deck:
            cards = [kind for kind, times in DECK.items() for _ in range(times)]
            self._dice.shuffle(cards)
            self._deck.extend(cards)
        kind = self._deck.popleft()
        if self._strikes[kind]():
            self.counts[kind] += 1
            self._next = now + self._every
            self._book.write(kind=kind, at=time.time(), took=round(time.monotonic() - now, 2))
        else:
            # Others first, and this one again soon.
            self._deck.append(kind)
            self._next = now + 0.05

    @property
    def whole_deck_dealt(self) -> bool:
        """Whether every kind has struck."""
        return all(self.counts[kind] for kind in DECK)

    def end(self) -> None:
        """Take back everything that does not pass by itself."""
        for _, undo in self._later:
            undo()
        self._later = []
        self._stack.step_clock(0)

    def _kill(self, name: str) -> bool:
        pid = self._stack.pid(name)
        if pid is None:
            return False
        os.kill(pid, signal.SIGKILL)
        return True

    def _busy_worker(self) -> str | None:
        """A worker with attempts in hand that is not frozen."""
        names = [name for name in WORKERS if name not in self._frozen and self._stack.pid(name)]
        self._dice.shuffle(names)
        return next((name for name in names if self._watch.held_by(self._stack.pid(name))), None)

    def _kill_worker(self) -> bool:
        name = self._busy_worker()
        if name is None:
            return False
        pid = self._stack.pid(name)
        self._kill(name)
        self._watch.note_victims(pid)
        return True

    def _freeze(self) -> bool:
        name = self._busy_worker()
        if name is None or self._frozen:
            return False
        pid = self._stack.pid(name)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        self._watch.note_victims(pid)
        self._frozen.add(name)
        self._after(LEASE_SECONDS + self._dice.uniform(1, 4), lambda: self._thaw(name, pid))
        return True

    def _thaw(self, name: str, pid: int) -> None:
        self._frozen.discard(name)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _after(self, seconds: float, undo: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, undo))

    def _kill_command(self) -> bool:
        commands = [pid for pid in self._stack.strays() if _is_command(pid)]
        if not commands:
            return False
        with suppress(ProcessLookupError):
            os.kill(self._dice.choice(commands), signal.SIGKILL)
            return True
        return False

    def _flush(self) -> bool:
        with suppress(redis.RedisError):
            return bool(feed.client().flushall())
        return False

    def _publish(self, older: int) -> bool:
        """Put messages on the broker that nobody needs."""
        runs = Run.objects.order_by("-id").values_list("pk", "attempt_no")[:40]
        found = [(pk, no + older) for pk, no in runs if no + older >= 1]
        if not found:
            return False
        for run, no in self._dice.sample(found, min(8, len(found))):
            app.send_task(ITERATE, args=[run, no], retry=False)
        return True

    def _end_sessions(self) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                " ORDER BY random() LIMIT 4) AS chosen"
            )
            return bool(cursor.fetchone()[0])

    def _crash_postgres(self) -> bool:
        self._stack.postgres.stop(signal.SIGQUIT)
        self._stack.postgres.start()
        connection.close()
        return True

    def _kill_redis(self) -> bool:
        pid = self._stack.redis.pid
        if pid is None:
            return False
        os.kill(pid, signal.SIGKILL)
        self._stack.redis.stop()
        self._stack.redis.start()
        return True

    def _step_clock(self) -> bool:
        self._stack.step_clock(self._dice.choice(CLOCK_STEPS))
        return True

    def _fill_disk(self) -> bool:
        if not self._stack.fill_disk():
            return False
        self._after(DISK_FULL_SECONDS, self._stack.free_disk)
        return True


def _is_command(pid: int) -> bool:
    """A command of a task, a tool of one's own, or what keeps watch over one."""
    with suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"sleep" in line or b"tool_process" in line
    return False
