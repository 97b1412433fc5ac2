"""Effects in memory: scripted replies and exit codes, and a record of every call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loops.core.effects import CommandResult, Effects, Message, Reply, ReplyStop
from loops.patterns.base import BuildInfo

Scripted = Reply | str | Exception
INFO = BuildInfo(local_aim="the aim", budget=5, seed="seed")


@dataclass(frozen=True)
class Call:
    """One call of an agent."""

    role: str
    messages: tuple[Message, ...]
    system: str = ""
    schema: Mapping[str, Any] | None = None
    checks: Mapping[str, str] | None = None

    @property
    def text(self) -> str:
        """All text of the messages."""
        return "\n".join(str(message.content) for message in self.messages)


@dataclass
class FakeWorkspace:
    """A counter: each change leads to another snapshot."""

    version: int = 0
    made: int = 0
    """Versions that ever were, for changes that never repeat."""
    undone: list[tuple[str, str]] = field(default_factory=list)
    fault: Exception | None = None

    def snapshot(self) -> str:
        return f"tree-{self.version}"

    def undo(self, before: str, after: str) -> None:
        if self.fault:
            raise self.fault
        self.undone.append((before, after))
        self.version = int(before.removeprefix("tree-"))

    def change(self, characters: int) -> str:
        return f"change up to tree-{self.version}"[:characters]


@dataclass
class FakeAgents:
    """Replies by role, in order. A call without a reply left is an error."""

    replies: dict[str, deque[Scripted]]
    workspace: FakeWorkspace
    calls: list[Call] = field(default_factory=list)
    on_work: Callable[[FakeWorkspace], None] = lambda _: None

    def has(self, role: str) -> bool:
        return role in self.replies

    def ask(
        self,
        role: str,
        messages: Sequence[Message],
        *,
        system: str = "",
        schema: Mapping[str, Any] | None = None,
    ) -> Reply:
        return self._answer(Call(role, tuple(messages), system, schema))

    def _answer(self, call: Call) -> Reply:
        role = call.role
        self.calls.append(call)
        if not self.replies.get(role):
            raise AssertionError(f"unexpected call of {role}")
        scripted = self.replies[role].popleft()
        if isinstance(scripted, Exception):
            raise scripted
        return Reply(text=scripted) if isinstance(scripted, str) else scripted

    def work(self, role: str, prompt: str, *, checks: Mapping[str, str] | None = None) -> Reply:
        reply = self._answer(Call(role, (Message(role="user", content=prompt),), checks=checks))
        self.on_work(self.workspace)
        return reply

    def by(self, role: str) -> list[Call]:
        """The calls of one role."""
        return [call for call in self.calls if call.role == role]


@dataclass
class FakeCommands:
    """Exit codes by command, in order; the last one stays. A fix that exits 0 changes the tree."""

    exits: dict[str, deque[int | None]]
    workspace: FakeWorkspace
    ran: list[tuple[str, str]] = field(default_factory=list)
    together: list[list[str]] = field(default_factory=list)
    idle_fixes: frozenset[str] = frozenset()
    output: str = "output"

    def check(self, name: str, command: str) -> CommandResult:
        return self._run(name, command)

    def check_all(self, checks: Sequence[tuple[str, str]]) -> list[CommandResult]:
        self.together.append([name for name, _ in checks])
        return [self._run(name, command) for name, command in checks]

    def fix(self, name: str, command: str) -> CommandResult:
        result = self._run(name, command)
        if result.passed and command not in self.idle_fixes:
            self.workspace.version += 1
        return result

    def _run(self, name: str, command: str) -> CommandResult:
        self.ran.append((name, command))
        codes = self.exits[command]
        code = codes.popleft() if len(codes) > 1 else codes[0]
        return CommandResult(exit_code=code, output=self.output, timed_out=code is None)


@dataclass
class World:
    """All fakes of one run."""

    agents: FakeAgents
    commands: FakeCommands
    workspace: FakeWorkspace

    @property
    def effects(self) -> Effects:
        return Effects(agents=self.agents, commands=self.commands, workspace=self.workspace)

    @property
    def trace(self) -> tuple[Any, ...]:
        """Everything that was asked of the world."""
        return (*self.agents.calls, *self.commands.ran)


def world(
    replies: Mapping[str, Iterable[Scripted]] | None = None,
    exits: Mapping[str, Iterable[int | None]] | None = None,
) -> World:
    """A fresh world with these replies by role and exit codes by command."""
    workspace = FakeWorkspace()
    by_role = {role: deque(script) for role, script in (replies or {}).items()}
    by_command = {command: deque(codes) for command, codes in (exits or {}).items()}
    return World(FakeAgents(by_role, workspace), FakeCommands(by_command, workspace), workspace)


def refusal(note: str = "") -> Reply:
    """The safety classifier declined."""
    return Reply(text="", stop=ReplyStop.REFUSAL, note=note)


def truncated(text: str) -> Reply:
    """An answer that was cut off."""
    return Reply(text=text, stop=ReplyStop.MAX_TOKENS)
