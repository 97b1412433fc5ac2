"""What a look at a check found, and what a fixer says of its own work (S3-10, S3-11).

A check that ends with `NOT_YET`, or prints `LOOPWARDEN_WAIT <seconds>` as its last line, is not
ready; one that asks for anything but whole seconds is red. A fixer may print one JSON object as
its last line: `{"fixed": false, "skipped": true, "reason": "quota"}`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from enum import StrEnum

from loops.core.effects import Commands
from loops.core.lifecycle import SENTENCES, StopReason
from loops.patterns import gh_checks
from loops.patterns.commands import CommandNotFound, RedCheck, check_name, must_exist

NOT_YET = 75  # EX_TEMPFAIL: the same command may succeed later
LONGEST_WAIT = 86_400
QUOTA = "quota"
_LOG_IN = "gh is not logged in where commands run: log it in there, or give it a GH_TOKEN."
_WAIT = "LOOPWARDEN_WAIT"
_SECONDS = re.compile(r"\s+0*([0-9]{1,6})[0-9]*")  # the first digits of a long number tell enough


class Sight(StrEnum):
    """How a check stands."""

    GREEN = "green"
    RED = "red"
    PENDING = "pending"
    ABSENT = "absent"  # nothing has been reported yet, which is no green


@dataclass(frozen=True, kw_only=True)
class Watched:
    """One check after one look at it."""

    check: RedCheck
    sight: Sight
    seconds: int | None = None
    """How long to wait, if the check itself says so."""


def watch(commands: Commands, number: int, check: str) -> Watched:
    """Look at one check. A command that blocks until it knows is as good as one that polls.

    Raises `CommandNotFound`.
    """
    name = check_name(number)
    address = gh_checks.address_of(check)
    command = gh_checks.command_for(check, address) if address else check
    result = commands.check(name, command)
    must_exist(name, command, result)
    seen = RedCheck(name=name, command=check, result=result, number=number)
    if not address:
        return _read(seen)
    if result.exit_code == gh_checks.NO_LOGIN:
        raise CommandNotFound(f"{SENTENCES[StopReason.COMMAND_NOT_FOUND]} {name}: {_LOG_IN}")
    sight = Sight(gh_checks.sight_of(result))
    if sight is Sight.RED:
        failing = gh_checks.failing(commands.check(f"{name} runs", gh_checks.listing(address)))
        seen = replace(seen, result=replace(result, output=failing or result.output))
    return Watched(check=seen, sight=sight)


def says_not_ready(output: str, exit_code: int | None = None) -> bool:
    """Whether what was looked at is to be looked at again later, by the two ways to say so."""
    return exit_code == NOT_YET or _seconds_in(_last_line(output)) is not None


def _read(check: RedCheck) -> Watched:
    last = _last_line(check.result.output)
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


@dataclass(frozen=True, kw_only=True)
class FixReport:
    """What a fixer says; without a report the files alone say whether it fixed anything."""

    fixed: bool = False
    skipped: bool = False
    reason: str = ""

    @property
    def out_of_quota(self) -> bool:
        """The failure is no fault of the work: a quota is used up, which counts as a pass."""
        return self.skipped and self.reason.strip().lower() == QUOTA


def read_report(text: str) -> FixReport:
    """The report in the last line of a fixer's output; an empty one when there is none."""
    try:
        said = json.loads(_last_line(text))
    except (ValueError, RecursionError):
        return FixReport()
    if not isinstance(said, dict):
        return FixReport()
    reason = said.get("reason")
    return FixReport(
        fixed=said.get("fixed") is True,
        skipped=said.get("skipped") is True,
        reason=reason if isinstance(reason, str) else "",
    )


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2].strip()
