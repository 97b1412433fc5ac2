"""An agent whose provider keeps its own books: what it billed, whatever became of the answer."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loops.core.effects import Reply, ReplyStop, Usage
from loops.core.errors import AgentFault
from loops.core.limits import Amount
from tests.engine import scenes
from workers.agents.base import AgentRequest, Prices, ProviderConfig, ProviderKind

NAME = "booked"


@dataclass(frozen=True)
class Answer:
    """What the provider does with one call."""

    kind: str = "good"
    """good, changes, garbage, refusal, fault (bills and fails), lost (bills, usage unknown)."""
    billed: int = 100
    """Percent of the worst case."""


@dataclass
class Provider:
    """The other side of the wire: its script, its books, and who wants to know of a call."""

    script: deque[Answer] = field(default_factory=deque)
    books: dict[str, dict[str, int]] = field(
        default_factory=lambda: defaultdict(
            lambda: {"model_calls": 0, "tokens": 0, "cost_microusd": 0}
        )
    )
    on_call: Callable[[threading.Event], None] = lambda _: None
    """Called with what would cancel the call, after it was billed."""

    def bill(self, book: str, tokens: int, cost: int) -> None:
        """One request that arrived."""
        for axis, amount in (("model_calls", 1), ("tokens", tokens), ("cost_microusd", cost)):
            self.books[book][axis] += amount


provider = Provider()


class Config(ProviderConfig):
    """Which page of the books, and the most that one call is billed."""

    book: str
    tokens: int
    cost_microusd: int


@dataclass(frozen=True, kw_only=True)
class Booked:
    """The client's side, as the product sees it."""

    config: Config
    priced = True
    identity = ""
    works_in_workspace = False
    supports_tools = False
    asks_to_reserve = False

    def reserve(self, _request: AgentRequest, /) -> Amount:
        """The worst case, which is the usual one."""
        return Amount(
            model_calls=1, tokens=self.config.tokens, cost_microusd=self.config.cost_microusd
        )

    def unused(self, _turns_by_role: Mapping[str, int]) -> list[str]:
        """Nothing is left over in these books."""
        return []

    def call(self, request: AgentRequest, *, deadline: float, cancelled: threading.Event) -> Reply:
        """Bill, then answer by the script."""
        if deadline <= 0:
            raise AgentFault("no time was left to send it", tokens=0, cost_microusd=0)
        answer = provider.script.popleft() if provider.script else Answer()
        tokens = self.config.tokens * answer.billed // 100
        cost = self.config.cost_microusd * answer.billed // 100
        provider.bill(self.config.book, tokens, cost)
        provider.on_call(cancelled)
        if answer.kind == "fault":
            raise AgentFault("the provider failed after billing")
        known = None if answer.kind == "lost" else cost
        return Reply(
            text=_text(request.role, answer.kind),
            stop=ReplyStop.REFUSAL if answer.kind == "refusal" else ReplyStop.END,
            usage=Usage(input_tokens=tokens, output_tokens=0, cost_microusd=known),
            model=NAME,
        )


def _text(role: str, kind: str) -> str:
    if kind in ("garbage", "refusal"):
        return "no"
    if role == "reviewer":
        return scenes.changes("more") if kind == "changes" else scenes.APPROVED
    return scenes.code("x = 1")


def _build(config: Config, _prices: Prices | None) -> Booked:
    return Booked(config=config)


PROVIDER: ProviderKind[Any] = ProviderKind(
    name=NAME, summary="Keeps its own books, for tests.", config=Config, build=_build
)
