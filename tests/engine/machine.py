"""L1: any order of events, faults and decisions, on the real models and the real code.

A test file runs its share of 75 examples, the same ones everywhere, or as many as `EXAMPLES`
says; with `SHRINK` set a failing one is made as short as it can be.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from loops import feed
from loops.models import Decision, Escalation
from tests.engine.booked_agent import Answer, provider
from tests.engine.machine_world import CALL_COST, CALL_TOKENS, World, outside
from workers import dispatch, sweeper
from workers.lease import draining

EXAMPLES = 25
STEPS = 60
MOST_RUNS = 6
MOST_HELD = 4
LOOKS_AT_ROWS = 4
"""Every so many steps: what is broken in stored rows stays broken."""
POINTS = (
    "claimed", "begun", "reserved", "counted", "sent", "answered", "settled", "recorded-1",
    "decided", "finished", "call",
)  # fmt: skip
IN_PASSES = ("acquired", "acquired", "admitted", "published", "trust", "closing", "taken-back")
_OF_REDIS = ("install", "install-day", "install-day", "acquired")
pick = st.integers(0, 7)
numbers = st.integers(0, 80).map(str)
crashes = st.one_of(st.sampled_from(POINTS), numbers)
work_holds = st.one_of(st.sampled_from((*POINTS, "call", "call", *_OF_REDIS)), numbers)
pass_holds = st.one_of(st.sampled_from(IN_PASSES), st.integers(0, 30).map(str))
answers = st.builds(
    Answer,
    kind=st.sampled_from(["good", "changes", "changes", "fault", "lost", "garbage", "refusal"]),
    billed=st.sampled_from([100, 100, 100, 30, 0]),
)
# Costs at the maximum find what costs in the middle never find.
limits = st.fixed_dictionaries(
    {
        "iterations": st.integers(1, 3),
        "errors": st.integers(0, 2),
        "model_calls": st.sampled_from([None, 1, 2, 3]),
        "tokens": st.sampled_from([None, 2 * CALL_TOKENS, 3 * CALL_TOKENS + 50]),
        "cost_microusd": st.sampled_from([None, 2 * CALL_COST, 3 * CALL_COST]),
        "deadline_seconds": st.sampled_from([None, None, 60, 600]),
    }
)
decisions = st.sampled_from(["continue", "continue", "accept", "close", "approve"])
caps = st.sampled_from([2 * CALL_TOKENS, 5 * CALL_TOKENS, 8 * CALL_TOKENS + 50])
scripts = st.lists(answers, max_size=3)
patterns = st.sampled_from(["coder_reviewer", "one_pass"])


def _move(
    weight: int, name: str, *facts: st.SearchStrategy[Any]
) -> list[st.SearchStrategy[tuple[Any, ...]]]:
    # New objects each time: Hypothesis takes equal ones for one.
    return [st.tuples(st.just(name), *facts) for _ in range(weight)]


# One rule with weights of its own: Hypothesis leaves out rules, and examples without deliveries
# find nothing.
moves = st.one_of(
    *_move(4, "deliver", scripts, pick, st.integers(0, 4)),
    *_move(3, "deliver_and_crash", scripts, pick, crashes),
    *_move(7, "deliver_and_hold", scripts, pick, work_holds),
    *_move(8, "go_on", pick, st.integers(0, 4)),
    *_move(4, "pass_time", st.sampled_from([7, 33, 70, 70, 130, 200])),
    *_move(3, "flush", st.booleans(), pick),
    *_move(3, "decide", st.sampled_from([0, 0, 1]), decisions, st.integers(0, 2)),
    *_move(2, "submit", patterns, limits, st.sampled_from(["gate", "stop"])),
    *_move(1, "make_a_pass", st.booleans()),
    *_move(1, "pass_and_crash", st.booleans(), st.integers(0, 25)),
    *_move(2, "pass_and_hold", st.booleans(), pass_holds),
    *_move(1, "duplicate", pick),
    *_move(1, "drop", pick),
    *_move(1, "stale", pick, st.integers(1, 3)),
    *_move(1, "beat"),
    *_move(1, "cancel", pick, st.integers(0, 2)),
    *_move(2, "pause", st.sampled_from(["run", "project", "all", "switch", "switch"]), pick),
    *_move(1, "resume"),
    *_move(1, "cap_day", st.one_of(st.none(), caps)),
)


class Machine(RuleBasedStateMachine):
    """Nothing lost, nothing overspent, nothing done twice."""

    environment: Any

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.environment.DATA_DIR)
        self.environment.CURRENT_WORLD = self.world
        self.steps = 0

    @initialize(runs=st.lists(limits, min_size=2, max_size=3), cap=st.one_of(st.none(), caps))
    def begin(self, runs: list[dict[str, int | None]], cap: int | None) -> None:
        if cap is not None:
            self.world.cap_day(cap)
        for limit in runs:
            self._submit("coder_reviewer", limit, "gate")
        dispatch.run_pass()

    @rule(move=moves)
    def step(self, move: tuple[Any, ...]) -> None:
        name, *facts = move
        getattr(self, f"_{name}")(*facts)

    def _message(self, at: int) -> tuple[int, int] | None:
        """The message that comes next; without any, what the dispatcher can publish."""
        broker = self.world.broker
        if not broker:
            self.world.resume_all()
            dispatch.run_pass()
        return broker.pop(at % len(broker)) if broker else None

    def _run(self, at: int) -> int:
        return self.world.runs[at % len(self.world.runs)]

    def _submit(self, pattern: str, caps: dict[str, int | None], on_limit: str) -> None:
        if len(self.world.runs) < MOST_RUNS:
            rounds = 1 if pattern == "one_pass" else caps["iterations"]
            self.world.submit(pattern, {**caps, "iterations": rounds}, on_limit)

    def _deliver(self, script: list[Answer], at: int, drains: int = 0) -> None:
        provider.script.extend(script)
        if message := self._message(at):
            with _draining(drains == 4):
                self.world.work_whole(message)

    def _deliver_and_crash(self, script: list[Answer], at: int, point: str) -> None:
        provider.script.extend(script)
        if message := self._message(at):
            self.world.crash(lambda: self.world.work(message), point)

    def _deliver_and_hold(self, script: list[Answer], at: int, point: str) -> None:
        provider.script.extend(script)
        if len(self.world.held) < MOST_HELD and (message := self._message(at)):
            in_time = not point.isdigit()
            self.world.hold(lambda: self.world.work(message, in_time=in_time), point)

    def _pass(self, sweeps: bool) -> Callable[[], int]:
        return sweeper.run_pass if sweeps else dispatch.run_pass

    def _pass_and_hold(self, sweeps: bool, point: str) -> None:
        if len(self.world.held) < MOST_HELD:
            self.world.hold(self._pass(sweeps), point)

    def _pass_and_crash(self, sweeps: bool, at: int) -> None:
        self.world.crash(self._pass(sweeps), str(at))

    def _make_a_pass(self, sweeps: bool) -> None:
        self._pass(sweeps)()

    def _go_on(self, at: int, drains: int) -> None:
        if self.world.held:
            with _draining(drains == 4):
                self.world.go_on(at)

    def _duplicate(self, at: int) -> None:
        if self.world.broker:
            self.world.broker.append(self.world.broker[at % len(self.world.broker)])

    def _drop(self, at: int) -> None:
        if self.world.broker:
            self._message(at)

    def _stale(self, run: int, no: int) -> None:
        self.world.work_whole((self._run(run), no))

    def _flush(self, works: bool, at: int) -> None:
        feed.client().flushall()
        if works:
            self._deliver([], at)

    def _pass_time(self, seconds: int) -> None:
        self.world.pass_time(seconds)

    def _beat(self) -> None:
        self.world.beat()

    def _cancel(self, run: int, really: int) -> None:
        if not really:
            self.world.cancel(self._run(run))

    def _decide(self, at: int, decision: str, stale: int) -> None:
        items = sorted(Escalation.objects.order_by("-pk"), key=lambda item: item.status != "open")
        if items:
            decision = Decision(decision).value
            self.world.decide(items[at % len(items)], decision, stale=stale == 2)

    def _pause(self, kind: str, run: int) -> None:
        if not self.world.holds:
            self.world.pause(kind, self._run(run))

    def _resume(self) -> None:
        self.world.resume_all()

    def _cap_day(self, cap: int | None) -> None:
        if self.world.capped:
            self.world.cap_day(cap)

    @invariant()
    def holds(self) -> None:
        self.steps += 1
        self._look(rows=self.steps % LOOKS_AT_ROWS == 0)

    def _look(self, *, rows: bool) -> None:
        if broken := self.world.broken(rows=rows):
            raise AssertionError("\n".join(broken))

    def teardown(self) -> None:
        try:
            self.world.come_to_rest()
            self._look(rows=True)
        finally:
            self.world.close()


class _draining:  # noqa: N801 - reads as a word
    """This worker is told to stop, for a while."""

    def __init__(self, drains: bool) -> None:
        self._drains = drains

    def __enter__(self) -> None:
        if self._drains:
            draining.set()

    def __exit__(self, *_error: object) -> None:
        draining.clear()


def run_examples(number: int, monkeypatch: pytest.MonkeyPatch, environment: Any) -> None:
    """One file's share of the examples, the same on every machine."""
    with outside(monkeypatch, environment):
        chosen = type(f"Machine{number}", (Machine,), {"environment": environment})
        run_state_machine_as_test(
            seed(number)(chosen),
            settings=settings(
                max_examples=int(os.environ.get("EXAMPLES", EXAMPLES)),
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                print_blob=True,
                phases=[Phase.generate, *([Phase.shrink] if "SHRINK" in os.environ else [])],
                suppress_health_check=list(HealthCheck),
            ),
        )
