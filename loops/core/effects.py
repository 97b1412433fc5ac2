"""What a pattern may ask of the world: small protocols, handed in when its contract is built.

Limits are checked and usage is charged behind these doors, so a pattern cannot forget to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

from loops.core.errors import AgentFault, EmptyAnswer, Truncated
from loops.core.tooling import Meter, NoMeter, NoTools, Tools


class ReplyStop(StrEnum):
    """Why the model stopped talking. Any other value is a fault, never a success."""

    END = "end_turn"
    STOP_SEQUENCE = "stop_sequence"
    MAX_TOKENS = "max_tokens"
    CONTEXT_FULL = "model_context_window_exceeded"
    REFUSAL = "refusal"
    TOOL_USE = "tool_use"
    PAUSE = "pause_turn"


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one call used. `cost_microusd` is None when no price is known."""

    input_tokens: int = 0
    """All input, what was read from a cache or written to one included."""
    output_tokens: int = 0
    cost_microusd: int | None = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Input and output together, cache reads included."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, kw_only=True)
class Message:
    """One turn of a conversation.

    `content` is text, or for an assistant turn the provider's own blocks (`Reply.turn`), which go
    back unchanged and in order (S0-17).
    """

    role: Literal["user", "assistant"]
    content: Any


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A tool that the model wants to be used."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer of an agent."""

    text: str
    stop: ReplyStop = ReplyStop.END
    turn: Any = None
    """The full turn as the provider sent it. Lives in memory only, it may hold thinking blocks."""
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    note: str = ""
    """A refusal's category or explanation."""
    tool_calls: tuple[ToolCall, ...] = ()
    price: Mapping[str, str] | None = None
    """The price row that the cost comes from."""

    @property
    def refused(self) -> bool:
        """The safety classifier declined: another round cannot fix it (S0-14)."""
        return self.stop is ReplyStop.REFUSAL

    @property
    def truncated(self) -> bool:
        """It was cut off, so it is neither code nor a verdict (S0-15)."""
        return self.stop in (ReplyStop.MAX_TOKENS, ReplyStop.CONTEXT_FULL)

    def answer(self) -> str:
        """The text, or an error: refusal is for the caller to check first (S0-X1).

        Raises `Truncated` (S0-15), `EmptyAnswer` (S0-16), or `AgentFault` for a turn that is not
        over.
        """
        if self.truncated:
            raise Truncated
        if self.stop in (ReplyStop.TOOL_USE, ReplyStop.PAUSE):
            raise AgentFault(f"The agent did not finish its turn: {self.stop}.")
        if not self.text.strip():
            raise EmptyAnswer
        return self.text


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """One command that ran to its end, or was ended."""

    exit_code: int | None
    """None when the command was ended by its time limit."""
    output: str
    """Both streams in the order they came, capped, valid text without control codes."""
    seconds: float = 0.0
    timed_out: bool = False
    output_cut: bool = False
    warnings: tuple[str, ...] = ()
    """`background_process_killed` when the command left processes behind."""
    artifact: str = ""
    """Digest of the stored output."""

    @property
    def passed(self) -> bool:
        """Only exit code 0 passes; a timeout never does."""
        return self.exit_code == 0 and not self.timed_out


class Agents(Protocol):
    """Agents by role (coder, reviewer, fixer, ...)."""

    def has(self, role: str) -> bool:
        """Whether the task names an agent for this role."""
        ...

    def ask(
        self,
        role: str,
        messages: Sequence[Message],
        *,
        system: str = "",
        schema: Mapping[str, Any] | None = None,
    ) -> Reply:
        """One model call. Raises `LimitReached` before the call when it does not fit.

        A provider may use the JSON schema to shape the answer; nobody may rely on it.
        """
        ...

    def work(self, role: str, prompt: str, *, checks: Mapping[str, str] | None = None) -> Reply:
        """Let an agent change the workspace.

        `checks` are commands by name that it may run, where it uses tools of ours.
        """
        ...


class Commands(Protocol):
    """Commands in the workspace."""

    def check(self, name: str, command: str) -> CommandResult:
        """Run a check. What it writes to the workspace stays."""
        ...

    def check_all(self, checks: Sequence[tuple[str, str]]) -> list[CommandResult]:
        """Run checks, given as name and command, side by side in the same workspace.

        Returns when the last has ended, with the results in the order of the checks.
        """
        ...

    def fix(self, name: str, command: str) -> CommandResult:
        """Run a command whose purpose is to change the workspace."""
        ...


class Workspace(Protocol):
    """The run's private copy of the repository."""

    def snapshot(self) -> str:
        """The id of the tree as it is now, equal for equal content."""
        ...

    def change(self, characters: int) -> str:
        """The change since the run began as text for a reviewer, at most so many characters."""
        ...

    def undo(self, before: str, after: str) -> None:
        """Take back exactly what changed between the two snapshots, or raise `UndoFailed`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Effects:
    """All doors of one attempt."""

    agents: Agents
    commands: Commands
    workspace: Workspace
    tools: Tools = field(default_factory=NoTools)
    meter: Meter = field(default_factory=NoMeter)
