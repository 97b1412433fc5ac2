"""What check commands said, as facts, lines for people and text for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loops.core.effects import CommandResult, Commands
from loops.core.errors import LoopwardenError
from loops.core.lifecycle import SENTENCES, StopReason
from loops.core.text import tail

OUTPUT_LINES = 60
OUTPUT_CHARACTERS = 8_000


class CommandNotFound(LoopwardenError):
    """The shell did not find the command, or may not run it: no retry mends that."""


@dataclass(frozen=True, kw_only=True)
class RedCheck:
    """A check that did not pass."""

    number: int
    """Its place in the list of checks, from 0."""
    command: str
    result: CommandResult

    @property
    def name(self) -> str:
        """How the check is called in steps, pages and prompts."""
        return check_name(self.number)

    @property
    def line(self) -> str:
        """One line for people: name, command, and how it ended (S4-G1)."""
        result = self.result
        ending = "timed out" if result.timed_out else f"exited with {result.exit_code}"
        return f"{self.name}: {self.command.strip()} {ending}"

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


def red_checks(commands: Commands, checks: Sequence[str]) -> list[RedCheck]:
    """Run all checks in order and return those that failed; a red one hides no other.

    Raises `CommandNotFound`.
    """
    ran = [
        RedCheck(number=number, command=check, result=commands.check(check_name(number), check))
        for number, check in enumerate(checks)
    ]
    for check in ran:
        must_exist(check.name, check.command, check.result)
    return [check for check in ran if not check.result.passed]


def must_exist(name: str, command: str, result: CommandResult) -> None:
    """Raise `CommandNotFound` on the two exit codes by which a shell says so."""
    if result.exit_code in (126, 127):
        raise CommandNotFound(
            f"{SENTENCES[StopReason.COMMAND_NOT_FOUND]}"
            f" {name}: {command.strip()} exited with {result.exit_code}."
        )
