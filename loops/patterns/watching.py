"""Checks that may be not ready: one rule for every pattern that runs any (RC053, S3-11).

A check that ends with `NOT_YET`, or prints `LOOPWARDEN_WAIT <seconds>` as its last line, is not
ready. Unless another one is red, the pattern then waits: it keeps its state and what `NotReady`
says is to be kept in it, and the next look runs only what has not passed. A check that asks for
anything but whole seconds is red.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from loops.core.contract import NotYet
from loops.core.effects import CommandResult, Commands
from loops.core.errors import LoopwardenError
from loops.core.lifecycle import SENTENCES, StopReason
from loops.core.text import last_line, tail
from loops.patterns import gh_checks
from loops.patterns.base import BuildInfo, CannotGoOn, StateModel
from loops.patterns.commands import (
    OUTPUT_CHARACTERS,
    OUTPUT_LINES,
    CommandNotFound,
    RanCheck,
    must_exist,
)

NOT_YET = 75  # EX_TEMPFAIL: the same command may succeed later
LONGEST_WAIT = 86_400
USUAL_POLL_SECONDS, USUAL_MAX_POLLS, USUAL_GRACE = 30, 120, 3
_LOG_IN = "gh is not logged in where commands run: log it in there, or give it a GH_TOKEN."
_WAIT = "LOOPWARDEN_WAIT"
_SECONDS = re.compile(r"\s+0*([0-9]{1,6})[0-9]*")  # the first digits of a long number tell enough

PollSeconds = Annotated[
    int,
    Field(
        ge=1,
        le=LONGEST_WAIT,
        title="Seconds between looks",
        description="How long to wait for a check that is not ready, unless it says so itself.",
    ),
]
MaxPolls = Annotated[
    int,
    Field(
        ge=1,
        title="Looks at a check that is not ready",
        description="It stops after so many in a row; they cost no iteration.",
    ),
]


class Sight(StrEnum):
    """How a check stands."""

    GREEN = "green"
    RED = "red"
    PENDING = "pending"
    ABSENT = "absent"  # nothing has been reported yet, which is no green


@dataclass(frozen=True, kw_only=True)
class Watched:
    """One check after one look at it."""

    check: RanCheck
    sight: Sight
    seconds: int | None = None
    """How long to wait, if the check itself says so."""

    @property
    def ending(self) -> str:
        """How it ended, as the rest of a sentence about it."""
        ready = self.sight in (Sight.GREEN, Sight.RED)
        return self.check.ending if ready else "is not ready yet"


class Passed(StateModel):
    """A check that passed while another one was not ready."""

    name: str
    output: str = ""
    """The end of its output."""
    artifact: str = ""


class Watching(StateModel):
    """What a state needs in order to wait for checks."""

    polls: int = 0
    """Looks in a row at checks that were not ready; 0 when it does not wait."""
    passed: tuple[Passed, ...] = ()
    """While it waits: what is not run again."""


class NotReady(LoopwardenError):
    """A check is not ready and none is red: the attempt ends as a wait (RC053).

    `kept` are the fields of `Watching` to be kept in the state.
    """

    def __init__(self, later: NotYet, kept: dict[str, Any]) -> None:
        super().__init__(later.reason)
        self.later, self.kept = later, kept


class TooManyLooks(CannotGoOn):
    """A check is still not ready after the most looks."""

    cause = StopReason.POLLS


def waits(state: Watching, info: BuildInfo) -> bool:
    """Whether what is to be checked is done already, and was not undone meanwhile."""
    return state.polls > 0 and not info.undone


@dataclass(frozen=True, kw_only=True)
class Checks:
    """The checks of one round."""

    commands: Commands
    info: BuildInfo
    checks: Sequence[tuple[str, str]]
    """Name and command."""
    poll_seconds: int = USUAL_POLL_SECONDS
    max_polls: int = USUAL_MAX_POLLS
    grace_polls: int = USUAL_GRACE
    together: bool = False
    """Whether they run side by side."""

    def look(self, state: Watching) -> list[Watched]:
        """All of them, in order; what passed while `state` waited is not run again.

        With a red one there may be others that are not ready: red goes first, since the work
        changes anyway. Raises `NotReady`, `TooManyLooks` or `CommandNotFound`. After a person let
        the run go on, the looks are counted anew.
        """
        known = state if waits(state, self.info) else Watching()
        polls = 0 if self.info.decided else known.polls
        before = {one.name: one for one in known.passed}
        ran = self._run([one for one in self.checks if one[0] not in before])
        seen = [
            self._again(before[name], command, number) if name in before else ran[name]
            for number, (name, command) in enumerate(self.checks)
        ]
        if polls >= self.grace_polls:
            seen = [replace(s, sight=Sight.RED) if s.sight is Sight.ABSENT else s for s in seen]
        if all(one.sight is Sight.GREEN for one in seen) or red_of(seen):
            return seen
        raise self._not_ready(seen, polls)

    def _run(self, checks: Sequence[tuple[str, str]]) -> dict[str, Watched]:
        pairs = [(name, gh_checks.command_for(check)) for name, check in checks]
        if self.together:
            results = self.commands.check_all(pairs) if pairs else []
        else:
            results = [self.commands.check(name, command) for name, command in pairs]
        for (name, command), result in zip(pairs, results, strict=True):
            must_exist(name, command, result)
        numbers = {name: number for number, (name, _) in enumerate(self.checks)}
        return {
            name: self._seen(RanCheck(name=name, command=check, result=one, number=numbers[name]))
            for (name, check), one in zip(checks, results, strict=True)
        }

    def _seen(self, check: RanCheck) -> Watched:
        address = gh_checks.address_of(check.command)
        if not address:
            return _read(check)
        if check.result.exit_code == gh_checks.NO_LOGIN:
            what = SENTENCES[StopReason.COMMAND_NOT_FOUND]
            raise CommandNotFound(f"{what} {check.name}: {_LOG_IN}")
        sight = Sight(gh_checks.sight_of(check.result))
        if sight is Sight.RED:
            listed = self.commands.check(f"{check.name} runs", gh_checks.listing(address))
            output = gh_checks.failing(listed) or check.result.output
            check = replace(check, result=replace(check.result, output=output))
        return Watched(check=check, sight=sight)

    def _again(self, passed: Passed, command: str, number: int) -> Watched:
        result = CommandResult(exit_code=0, output=passed.output, artifact=passed.artifact)
        check = RanCheck(name=passed.name, command=command, result=result, number=number)
        return Watched(check=check, sight=Sight.GREEN)

    def _not_ready(self, seen: Sequence[Watched], polls: int) -> NotReady | TooManyLooks:
        waiting = [one for one in seen if one.sight is not Sight.GREEN]
        names = " and ".join(f"{one.check.name} ({one.check.command.strip()})" for one in waiting)
        looks = polls + 1
        if looks >= self.max_polls:
            times = "look" if looks == 1 else "looks"
            return TooManyLooks(f"Not ready after {looks} {times}: {names}.")
        passed = tuple(_kept(one.check) for one in seen if one.sight is Sight.GREEN)
        seconds = min(one.seconds or self.poll_seconds for one in waiting)
        later = NotYet(seconds=seconds, reason=f"Not ready yet: {names}.")
        return NotReady(later, {"polls": looks, "passed": passed})


def red_of(seen: Sequence[Watched]) -> list[RanCheck]:
    """Those that failed."""
    return [one.check for one in seen if one.sight is Sight.RED]


def says_not_ready(output: str, exit_code: int | None = None) -> bool:
    """Whether what was looked at is to be looked at again later, by the two ways to say so."""
    return exit_code == NOT_YET or _seconds_in(last_line(output)) is not None


def _read(check: RanCheck) -> Watched:
    last = last_line(check.result.output)
    if last.startswith(_WAIT) and not check.result.timed_out:
        seconds = _seconds_in(last)
        if seconds is None:
            note = f"its last line must be {_WAIT} and a whole number of seconds, not {last!r:.80}"
            return Watched(check=replace(check, note=note), sight=Sight.RED)
        return Watched(check=check, sight=Sight.PENDING, seconds=seconds)
    if check.result.exit_code == NOT_YET:
        return Watched(check=check, sight=Sight.PENDING)
    return Watched(check=check, sight=Sight.GREEN if check.result.passed else Sight.RED)


def _seconds_in(line: str) -> int | None:
    asked = _SECONDS.fullmatch(line, len(_WAIT)) if line.startswith(_WAIT) else None
    return min(max(int(asked[1]), 1), LONGEST_WAIT) if asked else None


def _kept(check: RanCheck) -> Passed:
    end = tail(check.result.output, lines=OUTPUT_LINES, characters=OUTPUT_CHARACTERS)
    return Passed(name=check.name, output=end, artifact=check.result.artifact)
