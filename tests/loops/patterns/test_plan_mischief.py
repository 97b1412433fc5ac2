"""Whatever models answer and people decide: nothing runs unapproved, and it ends (S2-39)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loops.core.contract import Outcome
from loops.core.effects import Message, Reply
from loops.core.plan_states import PlanStatus
from loops.core.tooling import ToolOutcome, ToolUse, action_digest
from loops.patterns.plan_execute_review import Spec
from tests.loops.patterns.fakes import world
from tests.loops.patterns.plan_scenes import (
    FAILED,
    UNKNOWN,
    WORKED,
    FakeTools,
    Play,
    parameters,
    plan,
    review,
    step,
)

MOST_DECISIONS = 12


@dataclass
class Mischief:
    """Agents that answer anything, right and wrong."""

    chance: Random
    play: Play | None = None

    def has(self, role: str) -> bool:
        return role != ""

    def ask(
        self,
        role: str,
        messages: Sequence[Message],
        *,
        system: str = "",
        schema: Mapping[str, Any] | None = None,
    ) -> Reply:
        assert messages
        assert system
        assert schema is None or schema["type"] == "object"
        answers = {"executor": self._parameters, "reviewer": self._review}
        return Reply(text=answers.get(role, self._plan)())

    def work(self, role: str, prompt: str, *, checks: Mapping[str, str] | None = None) -> Reply:
        raise AssertionError(f"nobody asked {role} to work on {prompt} with {checks}")

    def _plan(self) -> str:
        chance = self.chance
        ids = [chance.choice("abcdefgh") for _ in range(chance.randint(1, 3))]
        steps = [
            step(
                id_,
                *[one for one in [*self._taken(), *ids[:at]] if chance.random() < 0.3],
                tool=chance.choice(
                    ["look", "read", "pay", "pay", "rm", None][: chance.choice([4, 6])]
                ),
                risk=chance.choice(["read", "reversible_write", "high_impact"]),
                acceptanceCriteria=[chance.choice(self._scope() or ["x exists", "y exists"])],
            )
            for at, id_ in enumerate(ids)
        ]
        assumptions = ["It is so."] if chance.random() < 0.2 else []
        return plan(*steps, assumptions=assumptions)

    def _taken(self) -> list[str]:
        return sorted(self.play.state.ended) if self.play else []

    def _scope(self) -> list[str]:
        return list(self.play.state.scope) if self.play else []

    def _parameters(self) -> str:
        odd = ["no json", parameters(path=1), '{"parameters": {"path": "x"}, "approved": true}']
        good = parameters(path=self.chance.choice(["x", "y"]))
        return good if self.chance.random() < 0.8 else self.chance.choice(odd)

    def _review(self) -> str:
        assert self.play is not None
        state, chance = self.play.state, self.chance
        ids = [one.id for one in state.evidence] or ["e0"]
        findings = [
            {
                "criterion": criterion,
                "status": chance.choice(["met", "met", "not_met", "not_verifiable"]),
                "evidenceIds": [chance.choice([*ids, *ids, "e999"])],
                "correction": f"fix {chance.randint(0, 9)}",
            }
            for criterion in state.criteria
        ]
        return review(chance.choice(["accept", "revise", "blocked"]), *findings)


@dataclass
class WatchedTools(FakeTools):
    """Tools with any outcome, and a record of what was paid under which approval."""

    chance: Random = field(default_factory=Random)
    paid: list[tuple[str, str]] = field(default_factory=list)

    def use(self, use: ToolUse, *, approved: str = "") -> ToolOutcome:
        super().use(use, approved=approved)
        if use.tool == "pay":
            self.paid.append((action_digest(use.tool, use.parameters), approved))
        return self.chance.choice([WORKED, WORKED, FAILED, UNKNOWN])


@pytest.mark.parametrize("parallel", [1, 3])
@given(seed=st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_s2_01_s2_39_nothing_of_high_impact_runs_without_its_own_approval_and_it_ends(
    parallel: int, seed: int
) -> None:
    """S2-1: approvals and ends are the engine's, whatever the four parts say."""
    chance = Random(seed)  # noqa: S311
    mischief, tools = Mischief(chance), WatchedTools(chance=chance)
    made = world()
    made.agents = mischief  # type: ignore[assignment]
    spec = Spec(goal="Reach it.", max_steps=6, max_revisions=2, parallel_reads=parallel)
    found = Play(made, tools=tools, spec=spec)
    mischief.play = found
    approvals = Counter[str]()
    result = found.go(100)
    for _ in range(MOST_DECISIONS):
        if result.outcome is not Outcome.ESCALATED or result.escalation is None:
            break
        ask = result.escalation.ask
        if ask is None:
            break
        decision = chance.choice(ask.decisions or ("continue",))
        if decision == "close":
            break
        if decision == "approve":
            approvals[ask.shown["action"]["sha256"]] += 1
        result = found.say(decision, "as I say")
    assert all(action == approved for action, approved in tools.paid)
    assert not Counter(action for action, _ in tools.paid) - approvals
    assert len({use.key for use in tools.used}) == len(tools.used)
    if result.outcome is Outcome.SUCCESS:
        assert found.state.status is PlanStatus.SUCCEEDED
        assert not found.state.findings
