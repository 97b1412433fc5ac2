"""L1: any order of events, faults and decisions, on the real models and the real code.

A test file runs its share of 300 examples, the same ones everywhere, or as many as `EXAMPLES`
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
    precondition,
    rule,
    run_state_machine_as_test,
)

from loops import feed
from loops.models import Decision, Escalation
from tests.engine.booked_agent import Answer, provider
from tests.engine.machine_world import CALL_COST, CALL_TOKENS, World, outside
from workers import dispatch, sweeper
from workers.lease import draining

EXAMPLES = 100
STEPS = 60
MOST_RUNS = 4
MOST_HELD = 4
LOOKS_AT_ROWS = 4
"""Every so many steps: what is broken in stored rows stays broken."""
POINTS = (
    "claimed", "begun", "reserved", "counted", "sent", "answered", "settled", "recorded-1",
    "decided", "finished", "call",
)  # fmt: skip
IN_PASSES = ("acquired", "acquired", "admitted", "published", "trust", "closing", "taken-back")
pick = st.integers(0, 7)
numbers = st.integers(0, 80).map(str)
crashes = st.one_of(st.sampled_from(POINTS), numbers)
work_holds = st.one_of(st.sampled_from((*POINTS, "call", "call", "install", "acquired")), numbers)
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
caps = st.sampled_from([2 * CALL_TOKENS, 5 * CALL_TOKENS, 8 * CALL_TOKENS + 50])
has_message = precondition(lambda self: self.world.broker)
has_held = precondition(lambda self: self.world.held)
may_hold = precondition(lambda self: len(self.world.held) < MOST_HELD)


class Machine(RuleBasedStateMachine):
    """Nothing lost, nothing overspent, nothing done twice."""

    environment: Any

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.environment.DATA_DIR)
        self.environment.CURRENT_WORLD = self.world
        self.steps = 0

    def _message(self, at: int) -> tuple[int, int]:
        broker = self.world.broker
        return broker.pop(at % len(broker))

    def _run(self, at: int) -> int:
        return self.world.runs[at % len(self.world.runs)]

    @initialize(runs=st.lists(limits, min_size=1, max_size=3), cap=st.one_of(st.none(), caps))
    def begin(self, runs: list[dict[str, int | None]], cap: int | None) -> None:
        if cap is not None:
            self.world.cap_day(cap)
        for limit in runs:
            self.submit("coder_reviewer", limit, "gate")
        dispatch.run_pass()

    @precondition(lambda self: len(self.world.runs) < MOST_RUNS)
    @rule(
        pattern=st.sampled_from(["coder_reviewer", "one_pass"]),
        caps=limits,
        on_limit=st.sampled_from(["gate", "stop"]),
    )
    def submit(self, pattern: str, caps: dict[str, int | None], on_limit: str) -> None:
        rounds = 1 if pattern == "one_pass" else caps["iterations"]
        self.world.submit(pattern, {**caps, "iterations": rounds}, on_limit)

    @has_message
    @rule(script=st.lists(answers, max_size=3), at=pick, drains=st.integers(0, 4))
    def deliver(self, script: list[Answer], at: int, drains: int) -> None:
        provider.script.extend(script)
        with _draining(drains == 4):
            self.world.work_whole(self._message(at))

    @has_message
    @rule(script=st.lists(answers, max_size=2), at=pick, point=crashes)
    def deliver_and_crash(self, script: list[Answer], at: int, point: str) -> None:
        provider.script.extend(script)
        message = self._message(at)
        self.world.crash(lambda: self.world.work(message), point)

    @has_message
    @may_hold
    @rule(script=st.lists(answers, max_size=2), at=pick, point=work_holds)
    def deliver_and_hold(self, script: list[Answer], at: int, point: str) -> None:
        provider.script.extend(script)
        message = self._message(at)
        self.world.hold(lambda: self.world.work(message), point)

    @may_hold
    @rule(sweeps=st.booleans(), point=pass_holds)
    def tend_and_hold(self, sweeps: bool, point: str) -> None:
        self.world.hold(self._pass(sweeps), point)

    def _pass(self, sweeps: bool) -> Callable[[], int]:
        return sweeper.run_pass if sweeps else dispatch.run_pass

    @has_held
    @rule(at=pick, drains=st.sampled_from([False, False, True]))
    def go_on(self, at: int, drains: bool) -> None:
        with _draining(drains):
            self.world.held.pop(at % len(self.world.held)).finish()

    @has_message
    @rule(at=pick)
    def duplicate(self, at: int) -> None:
        self.world.broker.append(self.world.broker[at % len(self.world.broker)])

    @has_message
    @rule(at=pick)
    def drop(self, at: int) -> None:
        self._message(at)

    @rule(run=pick, no=st.integers(1, 3))
    def stale(self, run: int, no: int) -> None:
        self.world.work_whole((self._run(run), no))

    @rule(sweeps=st.booleans())
    def make_a_pass(self, sweeps: bool) -> None:
        self._pass(sweeps)()

    @rule(at=st.integers(0, 25), sweeps=st.booleans())
    def tend_and_crash(self, at: int, sweeps: bool) -> None:
        self.world.crash(self._pass(sweeps), str(at))

    @rule()
    def tend(self) -> None:
        self.world.tend()

    @rule()
    def flush(self) -> None:
        feed.client().flushall()

    @rule(seconds=st.sampled_from([7, 33, 33, 70, 70, 130, 200]))
    def pass_time(self, seconds: int) -> None:
        self.world.pass_time(seconds)

    @has_held
    @rule()
    def beat(self) -> None:
        self.world.beat()

    @rule(run=pick, really=st.sampled_from([True, False, False]))
    def cancel(self, run: int, really: bool) -> None:
        if really:
            self.world.cancel(self._run(run))

    @rule(
        at=st.sampled_from([0, 0, 0, 1, 5]),
        decision=st.sampled_from(["continue", "continue", "accept", "close", "approve"]),
        stale=st.sampled_from([False, False, True]),
    )
    def decide(self, at: int, decision: str, stale: bool) -> None:
        items = sorted(Escalation.objects.order_by("-pk"), key=lambda item: item.status != "open")
        if items:
            self.world.decide(items[at % len(items)], Decision(decision).value, stale=stale)

    @precondition(lambda self: not self.world.holds)
    @rule(kind=st.sampled_from(["run", "project", "all", "switch", "switch"]), run=pick)
    def pause(self, kind: str, run: int) -> None:
        self.world.pause(kind, self._run(run))

    @precondition(lambda self: self.world.holds)
    @rule(at=pick)
    def resume(self, at: int) -> None:
        self.world.resume(self.world.holds[at % len(self.world.holds)])

    @precondition(lambda self: self.world.capped)
    @rule(cap=st.one_of(st.none(), caps))
    def cap_day(self, cap: int | None) -> None:
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
