"""L1: any order of events, faults and decisions, on the real models and the real code.

A test file runs 50 examples, the same ones everywhere, or as many as `EXAMPLES` says; with
`SHRINK` set a failing one is made as short as it can be.
"""

from __future__ import annotations

import os
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

STEPS = 60
MOST_RUNS = 4
POINTS = ("claimed", "reserved", "sent", "answered", "recorded-1", "decided", "finished", "call")
HOLDS = (*POINTS[:-2], "call", "call", "install")
pick = st.integers(0, 7)
crashes = st.one_of(st.sampled_from(POINTS), st.integers(0, 80).map(str))
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


class Machine(RuleBasedStateMachine):
    """Nothing lost, nothing overspent, nothing done twice."""

    environment: Any

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.environment.DATA_DIR)
        self.environment.CURRENT_WORLD = self.world

    def _message(self, at: int) -> tuple[int, int] | None:
        broker = self.world.broker
        return broker.pop(at % len(broker)) if broker else None

    @initialize(pattern=st.sampled_from(["coder_reviewer", "one_pass"]), caps=limits)
    def begin(self, pattern: str, caps: dict[str, int | None]) -> None:
        self.submit(pattern, caps, "gate")
        dispatch.run_pass()

    @rule(
        pattern=st.sampled_from(["coder_reviewer", "one_pass"]),
        caps=limits,
        on_limit=st.sampled_from(["gate", "stop"]),
    )
    def submit(self, pattern: str, caps: dict[str, int | None], on_limit: str) -> None:
        if len(self.world.runs) < MOST_RUNS:
            rounds = 1 if pattern == "one_pass" else caps["iterations"]
            self.world.submit(pattern, {**caps, "iterations": rounds}, on_limit)

    @rule(script=st.lists(answers, max_size=3), at=pick)
    def deliver(self, script: list[Answer], at: int) -> None:
        provider.script.extend(script)
        if message := self._message(at):
            self.world.work_whole(message)

    @rule(script=st.lists(answers, max_size=2), at=pick, point=crashes)
    def deliver_and_crash(self, script: list[Answer], at: int, point: str) -> None:
        provider.script.extend(script)
        if message := self._message(at):
            self.world.crash(lambda: self.world.work(message), point)

    @rule(script=st.lists(answers, max_size=2), at=pick, point=st.sampled_from(HOLDS))
    def deliver_and_hold(self, script: list[Answer], at: int, point: str) -> None:
        provider.script.extend(script)
        if len(self.world.held) < 3 and (message := self._message(at)):
            self.world.hold(message, point)

    @rule(at=pick, drains=st.sampled_from([False, False, True]))
    def go_on(self, at: int, drains: bool) -> None:
        if self.world.held:
            with _draining(drains):
                self.world.held.pop(at % len(self.world.held)).finish()

    @rule(at=pick)
    def deliver_while_draining(self, at: int) -> None:
        if message := self._message(at):
            with _draining(True):
                self.world.work_whole(message)

    @rule(at=pick)
    def duplicate(self, at: int) -> None:
        if self.world.broker:
            self.world.broker.append(self.world.broker[at % len(self.world.broker)])

    @rule(at=pick)
    def drop(self, at: int) -> None:
        self._message(at)

    @rule(run=pick, no=st.integers(1, 3))
    def stale(self, run: int, no: int) -> None:
        runs = list(self.world.runs.values())
        self.world.work_whole((runs[run % len(runs)], no))

    @rule()
    def sweep(self) -> None:
        sweeper.run_pass()

    @rule()
    def dispatch(self) -> None:
        dispatch.run_pass()

    @rule(at=st.integers(0, 25), sweeps=st.booleans())
    def tend_and_crash(self, at: int, sweeps: bool) -> None:
        self.world.crash(sweeper.run_pass if sweeps else dispatch.run_pass, str(at))

    @rule()
    def tend(self) -> None:
        self.world.tend()

    @rule()
    def flush(self) -> None:
        feed.client().flushall()

    @rule(seconds=st.sampled_from([7, 33, 33, 70, 70, 130, 200]))
    def pass_time(self, seconds: int) -> None:
        self.world.pass_time(seconds)

    @rule()
    def beat(self) -> None:
        self.world.beat()

    @rule(run=pick, really=st.sampled_from([True, False, False]))
    def cancel(self, run: int, really: bool) -> None:
        runs = list(self.world.runs.values())
        if really:
            self.world.cancel(runs[run % len(runs)])

    @rule(
        at=st.sampled_from([0, 0, 0, 1, 5]),
        decision=st.sampled_from(["continue", "continue", "accept", "close", "approve"]),
        stale=st.sampled_from([False, False, True]),
    )
    def decide(self, at: int, decision: str, stale: bool) -> None:
        items = sorted(Escalation.objects.order_by("-pk"), key=lambda item: item.status != "open")
        if items:
            self.world.decide(items[at % len(items)], Decision(decision).value, stale=stale)

    @invariant()
    def holds(self) -> None:
        if broken := self.world.broken():
            raise AssertionError("\n".join(broken))

    def teardown(self) -> None:
        try:
            self.world.come_to_rest()
            self.holds()
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
                max_examples=int(os.environ.get("EXAMPLES", "50")),
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                print_blob=True,
                phases=[Phase.generate, *([Phase.shrink] if "SHRINK" in os.environ else [])],
                suppress_health_check=list(HealthCheck),
            ),
        )
