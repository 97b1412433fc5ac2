"""What the worker asks of an agent's provider, and what it tells it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from loops.core.effects import CommandResult, Message, Reply
from loops.core.errors import AgentFault, ContractError
from loops.core.limits import Amount

MICROUSD_PER_USD = 1_000_000


class CallCancelled(AgentFault):
    """The run was stopped while the agent was at work."""


class DeadlinePassed(AgentFault):
    """The agent did not answer before its deadline."""


class CommandRunner(Protocol):
    """Runs one command of an agent, sandboxed, and kills all of it at the time limit."""

    def __call__(
        self, argv: Sequence[str], *, cwd: Path | None, timeout: float, stdin: str
    ) -> CommandResult:
        """Raises `CommandFault` when the command cannot be started."""
        ...


@dataclass(frozen=True, kw_only=True)
class ToolSpec:
    """A tool as a model is told of it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON schema of its arguments."""


@dataclass(frozen=True, kw_only=True)
class AgentRequest:
    """One call of an agent."""

    role: str
    messages: tuple[Message, ...]
    turn: int
    """How many calls of this role the run has on record before this one. Counted from stored
    steps, so it is the same on every machine and after a crash."""
    system: str = ""
    cwd: Path | None = None
    """The workspace, when the agent may change it."""
    run_command: CommandRunner | None = None
    schema: Mapping[str, Any] | None = None
    """JSON schema that the answer should keep to."""
    tools: tuple[ToolSpec, ...] = ()


class Provider(Protocol):
    """An agent that can be called."""

    @property
    def priced(self) -> bool:
        """Whether the cost of a call has a known upper bound."""
        ...

    @property
    def identity(self) -> str:
        """What answers: equal for the same model, empty when there is none."""
        ...

    @property
    def works_in_workspace(self) -> bool:
        """Whether the agent can change files by itself, in one call."""
        ...

    @property
    def supports_tools(self) -> bool:
        """Whether the agent can be offered tools, and so work through them."""
        ...

    @property
    def asks_to_reserve(self) -> bool:
        """Whether `reserve` asks a server, so that nothing may be held meanwhile."""
        ...

    def reserve(self, request: AgentRequest, /) -> Amount:
        """The most that this call can use. Its cost means nothing unless `priced`."""
        ...

    def unused(self, turns_by_role: Mapping[str, int]) -> list[str]:
        """What its settings hold that a finished run never used, a line each."""
        ...

    def call(self, request: AgentRequest, *, deadline: float, cancelled: threading.Event) -> Reply:
        """Call the agent; `deadline` is on the monotonic clock.

        Raises `AgentFault`, or one of its kinds, for anything that is no answer.
        """
        ...


class ProviderConfig(BaseModel):
    """The settings of a provider. Unknown keys are refused, so that a typing slip is seen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


ConfigT = TypeVar("ConfigT", bound=ProviderConfig)


@dataclass(frozen=True, kw_only=True)
class Prices:
    """US dollars per million tokens, which are micro-dollars per token."""

    input_usd_per_mtok: Decimal
    output_usd_per_mtok: Decimal

    def __post_init__(self) -> None:
        for price in (self.input_usd_per_mtok, self.output_usd_per_mtok):
            if not isinstance(price, Decimal) or not price.is_finite() or price < 0:
                raise ContractError(f"a price must be a Decimal of at least 0, not {price!r}")

    def cost_microusd(self, input_tokens: int, output_tokens: int) -> int:
        """The cost, rounded up."""
        exact = input_tokens * Fraction(self.input_usd_per_mtok)
        return math.ceil(exact + output_tokens * Fraction(self.output_usd_per_mtok))


def microusd(dollars: Decimal) -> int:
    """Dollars as micro-dollars, rounded up."""
    return int((dollars * MICROUSD_PER_USD).to_integral_value(rounding=ROUND_CEILING))


@dataclass(frozen=True, kw_only=True)
class ProviderKind(Generic[ConfigT]):
    """A provider as it stands in the table."""

    name: str
    summary: str
    """One plain sentence."""
    config: type[ConfigT]
    build: Callable[[ConfigT, Prices | None], Provider]
    """The provider with its settings, and its prices where they are known."""

    def open(self, config: dict[str, Any], prices: Prices | None = None) -> Provider:
        """Validate the stored settings and build. Raises pydantic's `ValidationError`."""
        return self.build(self.config.model_validate(config), prices)
