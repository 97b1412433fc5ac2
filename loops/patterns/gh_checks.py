"""The checks of a GitHub pull request as one named check, through the `gh` command (S3-11).

`gh:ADDRESS` blocks until all of them have finished or one has failed. `gh-poll:ADDRESS` looks once,
so that the run waits in the database between two looks and holds no worker.
"""

from __future__ import annotations

import re
import shlex

from loops.core.effects import CommandResult

BLOCKING, POLLING = "gh:", "gh-poll:"
_ADDRESS = re.compile(r"https://[\w.-]+/[\w.-]+/[\w.-]+/pull/[0-9]+")
_RUN = re.compile(r"/actions/runs/([0-9]+)")
_PENDING = 8
NO_LOGIN = 4
_NOTHING_YET = "no checks reported"
_FAILED = ("fail", "cancel")


def is_named(check: str) -> bool:
    """Whether the check is one of these, well formed or not."""
    return check.strip().startswith((BLOCKING, POLLING))


def address_of(check: str) -> str:
    """The address of the pull request; empty for any other check."""
    address = check.strip().partition(":")[2]
    return address if is_named(check) and _ADDRESS.fullmatch(address) else ""


def command_for(check: str) -> str:
    """The command that looks at the checks; any other check is its own command."""
    address = address_of(check)
    if not address:
        return check
    blocks = " --watch --fail-fast" if check.strip().startswith(BLOCKING) else ""
    return listing(address) + blocks


def listing(address: str) -> str:
    """The command that lists the checks as they are now, one per line."""
    return f"gh pr checks {shlex.quote(address)}"


def sight_of(result: CommandResult) -> str:
    """`green`, `red`, `pending` or `absent`. A watch that our time limit ended is pending."""
    if result.timed_out or result.exit_code == _PENDING:
        return "pending"
    if _NOTHING_YET in result.output:
        return "absent"
    return "green" if result.passed else "red"


def failing(listed: CommandResult) -> str:
    """A line for each check that failed, with the id of its run."""
    rows = [line.split("\t") for line in listed.output.splitlines()]
    lines = []
    for row in rows:
        if len(row) > 1 and row[1] in _FAILED:
            run = _RUN.search(row[-1])
            where = f"run {run[1]}, " if run else ""
            lines.append(f"{row[0]} failed: {where}{row[-1]}")
    return "\n".join(lines)
