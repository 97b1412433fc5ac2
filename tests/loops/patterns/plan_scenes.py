"""Tools and answers for plan_execute_review in memory."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from loops.core.contract import (
    Continue,
    Finish,
    LoopResult,
    Outcome,
    Progress,
    Wait,
    advance,
)
from loops.core.limits import Amount, Limits
from loops.core.plan import Risk
from loops.core.plan_states import ApprovalRequired
from loops.core.tooling import (
    Figures,
    ToolFault,
    ToolInfo,
    ToolOutcome,
    ToolStatus,
    ToolUse,
    action_digest,
)
from loops.patterns.base import Answer
from loops.patterns.plan_execute_review import PATTERN, Spec, State
from tests.loops.patterns.fakes import INFO, World

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
INFOS = {
    "look": ToolInfo(name="look", about="Look.", risk=Risk.READ, schema={}),
    "read": ToolInfo(name="read", about="Read a file.", risk=Risk.READ, schema=SCHEMA),
    "pay": ToolInfo(name="pay", about="Pay.", risk=Risk.HIGH_IMPACT, schema=SCHEMA),
}
WORKED = ToolOutcome(status=ToolStatus.COMPLETED, output="done", digest="d" * 64, call_id="c1")
UNKNOWN = replace(WORKED, status=ToolStatus.OUTCOME_UNKNOWN, error_code="timeout")
FAILED = replace(WORKED, status=ToolStatus.FAILED, error_code="tool_error")


@dataclass
class FakeTools:
    """Outcomes in order; what is left open is `WORKED`."""

    outcomes: deque[ToolOutcome] = field(default_factory=deque)
    gone: frozenset[str] = frozenset()
    probes: bool | None = None
    used: list[ToolUse] = field(default_factory=list)
    together: list[int] = field(default_factory=list)

    def authorized(self) -> Mapping[str, ToolInfo]:
        return INFOS

    def available(self) -> frozenset[str]:
        return frozenset(INFOS) - self.gone

    def check(self, tool: str, parameters: Mapping[str, Any]) -> None:  # noqa: ARG002
        if not isinstance(parameters.get("path"), str):
            raise ToolFault("bad_parameters", "path: must be text")

    def use(self, use: ToolUse, *, approved: str = "") -> ToolOutcome:
        if INFOS[use.tool].risk is Risk.HIGH_IMPACT and approved != action_digest(
            use.tool, use.parameters
        ):
            raise ApprovalRequired
        self.used.append(use)
        return self.outcomes.popleft() if self.outcomes else WORKED

    def use_together(self, uses: Sequence[ToolUse]) -> list[ToolOutcome]:
        self.together.append(len(uses))
        return [self.use(use) for use in uses]

    def probe(self, use: ToolUse) -> bool | None:  # noqa: ARG002
        return self.probes


@dataclass
class FakePages(FakeTools):
    """Tools with an `http_get` that knows these pages: status line and body by address."""

    pages: dict[str, str] = field(default_factory=dict)

    def authorized(self) -> Mapping[str, ToolInfo]:
        return {**INFOS, "http_get": replace(INFOS["read"], name="http_get")}

    def available(self) -> frozenset[str]:
        return frozenset(self.authorized()) - self.gone

    def check(self, tool: str, parameters: Mapping[str, Any]) -> None:
        if tool != "http_get":
            super().check(tool, parameters)
        elif len(parameters["url"]) > 200:
            raise ToolFault("bad_parameters", "url: too long.")

    def use(self, use: ToolUse, *, approved: str = "") -> ToolOutcome:
        if use.tool != "http_get":
            return super().use(use, approved=approved)
        self.used.append(use)
        page = self.pages.get(use.parameters["url"])
        refused = replace(FAILED, output="none of the allowed hosts")
        return refused if page is None else replace(WORKED, output=page)


@dataclass
class FakeMeter:
    """Figures that a test sets."""

    used: Amount = field(default_factory=Amount)
    limits: Limits = field(default_factory=lambda: Limits(iterations=50))

    def read(self) -> Figures:
        return Figures(
            run_id="1", used=self.used, limits=self.limits, now=datetime(2030, 1, 1, tzinfo=UTC)
        )


def step(id_: str, *after: str, **facts: Any) -> dict[str, Any]:
    usual = {
        "id": id_,
        "objective": f"do {id_}",
        "dependsOn": list(after),
        "tool": "look",
        "acceptanceCriteria": [f"{id_}.txt exists"],
        "expectedEvidence": ["a listing"],
        "risk": "read",
    }
    return {**usual, **facts}


def plan(*steps: dict[str, Any], assumptions: Sequence[str] = ()) -> str:
    return json.dumps({"goal": "g", "assumptions": list(assumptions), "steps": list(steps)})


def parameters(**given: Any) -> str:
    return json.dumps({"parameters": given})


def finding(id_: str, status: str = "met", *ids: str, fix: str | None = None) -> dict[str, Any]:
    return {
        "criterion": f"{id_}.txt exists",
        "status": status,
        "evidenceIds": list(ids),
        "correction": fix,
    }


def review(verdict: str, *findings: dict[str, Any]) -> str:
    return json.dumps({"verdict": verdict, "findings": list(findings)})


@dataclass
class Play:
    """One run in this process, state through JSON between attempts, people by hand."""

    world: World
    tools: FakeTools = field(default_factory=FakeTools)
    meter: FakeMeter = field(default_factory=FakeMeter)
    spec: Spec = field(default_factory=lambda: Spec(goal="Reach it."))
    state: State = field(default_factory=State)
    attempts: int = 0
    answer: Answer | None = None
    result: LoopResult[State] | None = None

    def go(self, most: int = 30) -> LoopResult[State]:
        """Until it ends or waits."""
        for _ in range(most):
            effects = replace(self.world.effects, tools=self.tools, meter=self.meter)
            info = replace(INFO, budget=50, answer=self.answer)
            stored = json.loads(json.dumps(PATTERN.dump_state(self.state)))
            loaded = PATTERN.load_state(self.spec, stored)
            contract = PATTERN.build(self.spec, loaded, effects, info)
            match advance(contract, Progress(state=loaded, attempts=self.attempts)):
                case Continue(progress=progress):
                    self.state, self.attempts = progress.state, progress.attempts
                case Wait(progress=progress):
                    self.state = progress.state
                case Finish(result=result):
                    self.state, self.result = result.final_state, result
                    return result
        raise AssertionError("not bounded")

    def say(self, decision: str, words: str = "", **shown: Any) -> LoopResult[State]:
        """A person decides on what was shown, and it goes on."""
        assert self.result is not None
        assert self.result.outcome is Outcome.ESCALATED
        assert self.result.escalation is not None
        assert self.result.escalation.ask is not None
        seen = {**self.result.escalation.ask.shown, **shown}
        self.answer = Answer(decision=decision, words=words, shown=seen)
        return self.go()

    @property
    def cause(self) -> str:
        assert self.result is not None
        return self.result.escalation.cause if self.result.escalation else ""
