"""What check commands said, as facts, lines for people and text for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loops.core.effects import CommandResult
from loops.core.lifecycle import SENTENCES, StopReason
from loops.core.progress import fingerprint
from loops.core.text import tail
from loops.patterns.base import CannotGoOn

OUTPUT_LINES = 60
OUTPUT_CHARACTERS = 8_000


class CommandNotFound(CannotGoOn):
    """The shell did not find the command, or may not run it: no retry mends that."""

    cause = StopReason.COMMAND_NOT_FOUND


@dataclass(frozen=True, kw_only=True)
class RanCheck:
    """A check and how it ended."""

    name: str
    """How the check is called in steps, pages and prompts."""
    command: str
    result: CommandResult
    number: int = 0
    """Its place in the list of checks, from 0."""
    note: str = ""
    """Why it is red, where how it ended does not say so."""

    @property
    def line(self) -> str:
        """One line for people: name, command, and how it ended (S4-G1)."""
        return f"{self.name}: {self.command.strip()} {self.ending}"

    @property
    def ending(self) -> str:
        """How it ended, as the rest of a sentence about it."""
        ending = "timed out" if self.result.timed_out else f"exited with {self.result.exit_code}"
        return f"{ending}, but {self.note}" if self.note else ending

    def report(self, lines: int) -> str:
        """The line, and under it so many last lines of the output (S4-G1)."""
        if not lines or not self.result.output.strip():
            return self.line
        return f"{self.line}\n{tail(self.result.output, lines=lines, characters=OUTPUT_CHARACTERS)}"

    @property
    def output(self) -> str:
        """The end of its output."""
        return tail(self.result.output, lines=OUTPUT_LINES, characters=OUTPUT_CHARACTERS)


def check_name(number: int) -> str:
    """The name of the check in this place of the list."""
    return f"check {number + 1}"


def named_checks(checks: Sequence[str]) -> dict[str, str]:
    """The checks by name, for an agent that may run them itself."""
    return {check_name(number): check for number, check in enumerate(checks)}


def failure_of(red: Sequence[RanCheck]) -> str:
    """Fingerprint of a failure; empty when no red check says anything about it (RC055)."""
    if not any(check.result.output.strip() for check in red):
        return ""
    return fingerprint("\n".join(f"{check.line}\n{check.output}" for check in red))


def must_exist(name: str, command: str, result: CommandResult) -> None:
    """Raise `CommandNotFound` on the two exit codes by which a shell says so."""
    if result.exit_code in (126, 127):
        raise CommandNotFound(
            f"{SENTENCES[StopReason.COMMAND_NOT_FOUND]}"
            f" {name}: {command.strip()} exited with {result.exit_code}."
        )
