"""Any agent with a command line: the prompt on standard input, the answer on standard output."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import Field, model_validator

from loops.core.effects import CommandResult, Message, Reply, ReplyStop, Usage
from loops.core.errors import AgentFault, AgentUnusable
from loops.core.limits import Amount
from loops.core.text import tail
from workers.agents.base import (
    AgentRequest,
    CallCancelled,
    DeadlinePassed,
    Prices,
    ProviderConfig,
    ProviderKind,
    microusd,
)

_CACHE_KEYS = ("cache_creation_input_tokens", "cache_read_input_tokens")
# A number beyond these is no report but a fault of the command, and would fit no column.
_MOST_TOKENS = 10**12
_MOST_DOLLARS = 10**6
_CANNOT_START = (126, 127)  # how a shell and the sandbox say that a program is not there


class Config(ProviderConfig):
    """How to start the agent, and what a call can cost at most."""

    argv: tuple[str, ...] = Field(min_length=1)
    """The program and its arguments. No shell reads them."""
    usage_json: bool = False
    """The last JSON object of the output holds `result`, `total_cost_usd` and `usage`."""
    max_tokens: int = Field(default=0, ge=0)
    """The most tokens one call may use; 0 for a command without a model."""
    max_cost_usd: Decimal | None = Field(
        default=None, ge=0, max_digits=12, decimal_places=6, allow_inf_nan=False
    )
    """The most that one call may cost, as set in `argv`; none when that is unknown."""

    @model_validator(mode="after")
    def _bounded(self) -> Config:
        if not self.argv[0].strip():
            raise ValueError("argv must begin with a program")
        if self.usage_json and not self.max_tokens:
            raise ValueError("an agent that reports its usage needs max_tokens, its upper bound")
        return self


@dataclass(frozen=True, kw_only=True)
class CommandAgent:
    """The provider. Its command runs through the runner that the request brings along."""

    config: Config
    prices: Prices | None

    works_in_workspace = True
    supports_tools = False
    asks_to_reserve = False

    @property
    def identity(self) -> str:
        """The command line."""
        return " ".join(self.config.argv)

    @property
    def priced(self) -> bool:
        """Whether the cost of a call has a known upper bound."""
        return self._max_cost() is not None

    def reserve(self, _request: AgentRequest) -> Amount:
        """The bounds of the settings, whatever the request is."""
        cost = self._max_cost() or 0
        return Amount(model_calls=1, tokens=self.config.max_tokens, cost_microusd=cost)

    def unused(self, turns_by_role: Mapping[str, int]) -> list[str]:  # noqa: ARG002
        """Nothing: a command line has no script."""
        return []

    def call(self, request: AgentRequest, *, deadline: float, cancelled: threading.Event) -> Reply:
        """Run the command to its end.

        Raises `AgentFault` when it fails or says that it failed, `DeadlinePassed` or
        `CallCancelled` when it was ended; `CommandFault` when it cannot be started.
        """
        if request.run_command is None:
            raise AgentFault("this call has no way to run a command")
        if cancelled.is_set():
            raise CallCancelled
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlinePassed
        result = request.run_command(
            self.config.argv, cwd=request.cwd, timeout=left, stdin=_prompt(request)
        )
        if cancelled.is_set():
            raise CallCancelled
        return self._reply(result)

    def _reply(self, result: CommandResult) -> Reply:
        if result.timed_out:
            raise DeadlinePassed
        if result.exit_code in _CANNOT_START:
            said = _failure(f"exited with {result.exit_code}", result.output)
            raise AgentUnusable(f"{said} Let argv begin with a program that can be started there.")
        report = last_json_object(result.output) if self.config.usage_json else None
        if not result.passed:
            what, said = f"exited with {result.exit_code}", result.output
            raise self._fault(_failure(what, said), report)
        if report is not None and report.get("is_error") is True:
            said = str(report.get("result", ""))
            raise self._fault(_failure("reports an error", said), report)
        answer = report.get("result") if report is not None else None
        if isinstance(answer, str):
            return Reply(text=answer, usage=self._usage(report), model=self._model)
        cut = ReplyStop.MAX_TOKENS if result.output_cut else ReplyStop.END
        return Reply(text=result.output, stop=cut, usage=self._usage(report), model=self._model)

    def _fault(self, message: str, report: dict[str, Any] | None) -> AgentFault:
        """A failure that was reported costs what it reports; any other one its bound."""
        if report is None:
            return AgentFault(message)
        usage = self._usage(report)
        return AgentFault(message, tokens=usage.tokens, cost_microusd=usage.cost_microusd)

    @property
    def _model(self) -> str:
        return self.config.argv[0].rpartition("/")[2]

    def _usage(self, report: dict[str, Any] | None) -> Usage:
        """The reported usage. Unknown tokens count as the bound, an unknown cost as None."""
        counts = _counts(report or {})
        spent_in, spent_out = counts or (self.config.max_tokens, 0)
        cost = _dollars((report or {}).get("total_cost_usd"))
        if cost is None and counts and self.prices is not None:
            cost = self.prices.cost_microusd(spent_in, spent_out)
        return Usage(input_tokens=spent_in, output_tokens=spent_out, cost_microusd=cost)

    def _max_cost(self) -> int | None:
        if self.config.max_cost_usd is not None:
            return microusd(self.config.max_cost_usd)
        if self.prices is None:
            return None
        tokens = self.config.max_tokens
        return max(self.prices.cost_microusd(tokens, 0), self.prices.cost_microusd(0, tokens))


def _failure(what: str, output: str) -> str:
    return f"the agent's command {what}: {tail(output, lines=20, characters=2_000)}".strip()


def _prompt(request: AgentRequest) -> str:
    """The whole conversation as one text; the turns are named when there is more than one."""
    system = [request.system] if request.system else []
    if len(request.messages) == 1:
        return "\n\n".join([*system, str(request.messages[0].content)])
    return "\n\n".join([*system, *_named(request.messages)])


def _named(messages: Sequence[Message]) -> list[str]:
    names = {"user": "Request", "assistant": "Your answer"}
    return [f"## {names[message.role]}\n\n{message.content}" for message in messages]


def last_json_object(output: str) -> dict[str, Any] | None:
    """The last JSON object that begins a line and ends the output or its line, or None.

    Numbers with a fraction are `Decimal`.
    """
    decoder = json.JSONDecoder(parse_float=Decimal, parse_constant=str)
    start = len(output)
    while (start := output.rfind("{", 0, start)) != -1:
        if start and output[start - 1] != "\n":
            continue
        try:
            found, end = decoder.raw_decode(output, start)
        except (ValueError, RecursionError):
            continue
        if output[end : end + 1] in ("", "\r", "\n") and isinstance(found, dict):
            return found
    return None


def _counts(report: dict[str, Any]) -> tuple[int, int] | None:
    """Input tokens, cache included, and output tokens; None unless both are reported."""
    usage = report.get("usage")
    if not isinstance(usage, dict):
        return None
    plain, out = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
    if plain is None or out is None:
        return None
    return plain + sum(_count(usage.get(key)) or 0 for key in _CACHE_KEYS), out


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= _MOST_TOKENS else None


def _dollars(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    return microusd(Decimal(value)) if 0 <= value <= _MOST_DOLLARS else None


PROVIDER = ProviderKind(
    name="command",
    summary="Runs any agent with a command line, or any program that fixes things.",
    config=Config,
    build=lambda config, prices: CommandAgent(config=config, prices=prices),
)
