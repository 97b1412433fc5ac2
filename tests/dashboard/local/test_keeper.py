from __future__ import annotations

from pathlib import Path

import pytest

from dashboard.local.errors import ChildFailed
from dashboard.local.keeper import Keeper, RestartPolicy

POLICY = RestartPolicy(quick_restarts=2, settled_seconds=30, first_pause_seconds=1)


class Thing:
    def __init__(self, log: Path) -> None:
        self.starts = 0
        self.lives = False
        self.keeper = Keeper(
            "thing", log, start=self._start, alive=lambda: self.lives, policy=POLICY
        )
        self.keeper.start()
        self.now = self.keeper.started_at

    def _start(self) -> None:
        self.starts += 1
        self.lives = True

    def die(self, *, after: float) -> None:
        self.lives = False
        self.now = self.keeper.started_at + after
        self.keeper.check(self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.keeper.check(self.now)


@pytest.fixture
def thing(tmp_path: Path) -> Thing:
    (tmp_path / "log").write_text("its last words\n")
    return Thing(tmp_path / "log")


def test_it_leaves_the_living_alone(thing: Thing) -> None:
    thing.wait(100)
    assert thing.starts == 1


def test_it_starts_the_dead_again_after_a_pause(thing: Thing) -> None:
    thing.die(after=5)
    thing.wait(0.9)
    assert thing.starts == 1
    thing.wait(0.1)
    assert thing.starts == 2


def test_it_gives_up_after_too_many_quick_deaths(thing: Thing) -> None:
    for _ in range(2):
        thing.die(after=5)
        thing.wait(100)
    with pytest.raises(ChildFailed, match=r"(?s)thing died 3 times in a row.*its last words"):
        thing.die(after=5)
    assert thing.starts == 3


def test_a_long_life_forgives(thing: Thing) -> None:
    for _ in range(10):
        thing.die(after=31)
        thing.wait(1)
    assert thing.starts == 11


def test_pauses_double_up_to_the_longest() -> None:
    policy = RestartPolicy(first_pause_seconds=0.5, longest_pause_seconds=3)
    assert [policy.pause(n) for n in range(1, 6)] == [0.5, 1, 2, 3, 3]
