"""A deterministic agent that follows a script: for demos, tests and trying out limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import Field, field_validator

from loops.core.effects import Reply, ReplyStop, Usage
from loops.core.errors import AgentFault
from loops.core.limits import Amount
from workers.agents.base import (
    AgentRequest,
    CallCancelled,
    DeadlinePassed,
    Prices,
    ProviderConfig,
    ProviderKind,
)


class Step(ProviderConfig):
    """One answer of one role."""

    role: str = Field(min_length=1)
    text: str = ""
    writes: dict[str, str] = Field(default_factory=dict)
    """Files to write in the workspace: content by relative path."""
    stop: ReplyStop = ReplyStop.END
    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    delay_seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    error: str = ""
    """Fail with this message instead of answering."""

    @field_validator("writes")
    @classmethod
    def _only_inside(cls, writes: dict[str, str]) -> dict[str, str]:
        for name in writes:
            _parts(name)
        return writes


class Config(ProviderConfig):
    """The script: the steps of each role are used in their order."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """The provider. A call that the script does not have is a fault."""

    config: Config
    prices: Prices | None

    identity = ""
    works_in_workspace = True
    supports_tools = False
    asks_to_reserve = False

    @property
    def priced(self) -> bool:
        """Whether the cost of a call has a known upper bound."""
        return self.prices is not None

    def reserve(self, request: AgentRequest) -> Amount:
        """Exactly what the step will use; nothing when there is no step left."""
        steps = self._steps(request.role)[request.turn :]
        if not steps:
            return Amount(model_calls=1)
        tokens = steps[0].input_tokens + steps[0].output_tokens
        return Amount(model_calls=1, tokens=tokens, cost_microusd=self._cost(steps[0]) or 0)

    def call(self, request: AgentRequest, *, deadline: float, cancelled: threading.Event) -> Reply:
        """The step of this role and turn, after its delay.

        Raises `AgentFault` for an unexpected call and for a step that is to fail.
        """
        steps = self._steps(request.role)
        if request.turn >= len(steps):
            raise AgentFault(
                f"unexpected call: the script has {len(steps)} step(s) for role"
                f" {request.role!r}, and this is call {request.turn + 1}"
            )
        step = steps[request.turn]
        _wait(step.delay_seconds, deadline, cancelled)
        if step.error:
            raise AgentFault(step.error)
        _write_all(step.writes, request.cwd)
        usage = Usage(
            input_tokens=step.input_tokens,
            output_tokens=step.output_tokens,
            cost_microusd=self._cost(step),
        )
        return Reply(text=step.text, stop=step.stop, usage=usage, model="scripted")

    def unused(self, turns_by_role: Mapping[str, int]) -> list[str]:
        """One line for each role that has steps left after so many calls."""
        lines = []
        for role in dict.fromkeys(step.role for step in self.config.steps):
            has, used = len(self._steps(role)), turns_by_role.get(role, 0)
            if used < has:
                lines.append(f"{has - used} of {has} scripted step(s) of role {role!r} are unused")
        return lines

    def _steps(self, role: str) -> list[Step]:
        return [step for step in self.config.steps if step.role == role]

    def _cost(self, step: Step) -> int | None:
        if self.prices is None:
            return None
        return self.prices.cost_microusd(step.input_tokens, step.output_tokens)


def _wait(seconds: float, deadline: float, cancelled: threading.Event) -> None:
    left = deadline - time.monotonic()
    if cancelled.wait(max(0.0, min(seconds, left))):
        raise CallCancelled
    if seconds >= left:
        raise DeadlinePassed


def _parts(name: str) -> tuple[str, ...]:
    """The parts of a relative path that stays inside, or `ValueError`."""
    parts = PurePosixPath(name).parts
    outside = name.startswith("/") or ".." in parts or "\\" in name or "\0" in name
    if not parts or outside:
        raise ValueError(f"{name!r} must be a relative path that stays inside the workspace")
    if any(part.lower() == ".git" for part in parts):
        raise ValueError(f"{name!r} is inside git's own folder")
    return parts


def _write_all(writes: Mapping[str, str], cwd: Path | None) -> None:
    if not writes:
        return
    if cwd is None:
        raise AgentFault("the step writes files, and this call has no workspace")
    for name, content in writes.items():
        _write(cwd, _parts(name), content)


def _write(cwd: Path, parts: tuple[str, ...], content: str) -> None:
    """Write one file, through no symbolic link and over nothing but a plain file."""
    target, name = cwd, "/".join(parts)
    try:
        for part in parts:
            target /= part
            if target.is_symlink():
                raise AgentFault(f"{name} leads through a symbolic link")
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            raise AgentFault(f"{name} is no plain file")
        target.write_bytes(content.encode())
    except (OSError, UnicodeEncodeError) as error:
        raise AgentFault(f"{name} cannot be written: {error}") from error


PROVIDER = ProviderKind(
    name="scripted",
    summary="Answers by a script, without a model.",
    config=Config,
    build=lambda config, prices: Scripted(config=config, prices=prices),
)
