"""Tools by name, behind an authorization layer, and the figures of the run (S2-22 to S2-26).

A model names a tool and gives parameters. What the tool is, what it can do and whether this task
may use it is never the model's to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

from loops.core.canonical import digest
from loops.core.errors import ContractError, FormatFault
from loops.core.limits import Amount, Limits
from loops.core.plan import Risk


class ToolFault(FormatFault):
    """The parameters do not fit the tool. `code` is unknown_tool or bad_parameters."""


class ToolStatus(StrEnum):
    """How one use of a tool ended (S2-22)."""

    COMPLETED = "completed"
    FAILED = "failed"
    OUTCOME_UNKNOWN = "outcome_unknown"


@dataclass(frozen=True, kw_only=True)
class ToolInfo:
    """A tool that a task may use, as a plan and its executor are told of it."""

    name: str
    about: str
    risk: Risk
    schema: Mapping[str, Any]
    """JSON schema of its parameters."""

    @property
    def takes_parameters(self) -> bool:
        """Whether somebody has to say with what."""
        return bool(self.schema.get("properties"))


@dataclass(frozen=True, kw_only=True)
class ToolGrant:
    """What one task may use by itself."""

    names: tuple[str, ...] = ()
    checks: Mapping[str, str] = field(default_factory=dict)
    """Commands by the name under which a check may be run."""


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """One use of a tool."""

    key: str
    """Unique in the run: whatever it stands for is done at most once (S2-25)."""
    tool: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ToolOutcome:
    """What it came to."""

    status: ToolStatus
    output: str = ""
    digest: str = ""
    """Of the stored output."""
    call_id: str = ""
    error_code: str = ""
    not_ready: bool = False
    """It only looked at something that is not ready yet."""


def action_digest(tool: str, parameters: Mapping[str, Any]) -> str:
    """What an approval is bound to: SHA-256 of the canonical tool and parameters (S2-G4)."""
    return digest({"tool": tool, "parameters": dict(parameters)})


class Tools(Protocol):
    """The authorization layer."""

    def authorized(self) -> Mapping[str, ToolInfo]:
        """Every tool of the registry that this task may use."""
        ...

    def available(self) -> frozenset[str]:
        """The tools of the registry that can be used here and now."""
        ...

    def check(self, tool: str, parameters: Mapping[str, Any]) -> None:
        """Raise `ToolFault` unless the parameters fit the tool."""
        ...

    def use(self, use: ToolUse, *, approved: str = "") -> ToolOutcome:
        """Use a tool once. `approved` is the digest of the action that a person approved.

        Raises `ApprovalRequired` before anything happens, for a tool of high impact without
        exactly this approval and for a tool that is unknown or not authorized.
        """
        ...

    def use_together(self, uses: Sequence[ToolUse]) -> list[ToolOutcome]:
        """Use read-only tools side by side; the results come in the order of the uses."""
        ...

    def probe(self, use: ToolUse) -> bool | None:
        """Whether an ambiguous use happened, where the tool can tell; None when nobody knows."""
        ...


class NoTools:
    """Where no tool is available."""

    def authorized(self) -> Mapping[str, ToolInfo]:
        """None."""
        return {}

    def available(self) -> frozenset[str]:
        """None."""
        return frozenset()

    def check(self, tool: str, parameters: Mapping[str, Any]) -> None:  # noqa: ARG002
        """No tool has fitting parameters."""
        raise ToolFault("unknown_tool", f"There is no tool {tool!r}.")

    def use(self, use: ToolUse, *, approved: str = "") -> ToolOutcome:  # noqa: ARG002
        """Refused."""
        raise ContractError(f"there is no tool {use.tool!r}")

    def use_together(self, uses: Sequence[ToolUse]) -> list[ToolOutcome]:
        """Refused, if there are any."""
        return [self.use(use) for use in uses]

    def probe(self, use: ToolUse) -> bool | None:  # noqa: ARG002
        """Nobody knows."""
        return None


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What the run has used, and its caps, at one moment."""

    run_id: str
    used: Amount
    limits: Limits
    now: datetime
    deadline_at: str | None = None


class Meter(Protocol):
    """Reads the run's figures."""

    def read(self) -> Figures:
        """The figures now."""
        ...


class NoMeter:
    """For a loop in one process, whose caller counts."""

    def read(self) -> Figures:
        """Nothing used and no cap."""
        return Figures(run_id="", used=Amount(), limits=Limits(iterations=1), now=datetime.now(UTC))
