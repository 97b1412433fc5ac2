"""Commands of one attempt: each one recorded, bounded and charged."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from django.conf import settings

from loops.core.canonical import digest as digest_of
from loops.core.effects import CommandResult
from loops.core.errors import UndoFailed, WorkspaceFault
from loops.core.limits import Amount
from loops.models import Attempt, StepKind
from loops.store import artifacts, attempts
from workers import processes
from workers.agents.base import CallCancelled
from workers.box import Box
from workers.commands import CANCELLED, run_command
from workers.recorder import Effect, Performed, Recorder
from workers.sandbox import Sandbox

_ONE_CALL = Amount(tool_calls=1)


class RunCommands:
    """`Commands` in the run's workspace. Every command counts as one tool call."""

    def __init__(self, recorder: Recorder, box: Box, sandbox: Sandbox) -> None:
        self._recorder = recorder
        self._box = box
        self._sandbox = sandbox

    def check(self, name: str, command: str) -> CommandResult:
        """Run a check."""
        return self._step(StepKind.CHECK, name, command)

    def fix(self, name: str, command: str) -> CommandResult:
        """Run a command that is to change the workspace."""
        return self._step(StepKind.COMMAND, name, command)

    def check_all(self, checks: Sequence[tuple[str, str]]) -> list[CommandResult]:
        """Run checks side by side; what they write is noted when the last has ended."""
        sandbox = self._box.confine(self._sandbox)
        timeout = self._recorder.lease.seconds_left
        effects = {
            Effect(
                kind=StepKind.CHECK,
                role=name,
                name=command,
                digest=_digest(name, command),
                worst=_ONE_CALL,
            ): partial(self._run, command, timeout=timeout, sandbox=sandbox)
            for name, command in checks
        }
        performed = self._recorder.together(effects, self._performed)
        for one in performed:
            self._box.follow(one.tree)
        return [self._verdict(one) for one in performed]

    def check_for_agent(self, name: str, command: str) -> CommandResult:
        """Run a check because an agent wants to see it: it is no verdict of the loop."""
        return self._step(StepKind.TOOL_CALL, name, command)

    def _step(self, kind: StepKind, name: str, command: str) -> CommandResult:
        def act() -> Performed:
            timeout = self._recorder.lease.seconds_left
            return self._performed(self._run(command, timeout=timeout), True)

        performed = self._recorder.step(
            kind=kind,
            role=name,
            name=command,
            digest=_digest(name, command),
            worst=_ONE_CALL,
            act=act,
        )
        self._box.follow(performed.tree)
        return self._verdict(performed)

    def _verdict(self, performed: Performed) -> CommandResult:
        """The result, unless the end of the working time cut the command off: that is no verdict.

        Raises `WorkingTimeUsed`.
        """
        if performed.result["timed_out"]:
            self._recorder.lease.refuse_overtime()
        return _result_of(performed)

    def _performed(self, result: CommandResult, quiet: bool) -> Performed:
        """`quiet`: no other command is still writing, so the files can be noted."""
        return Performed(
            result={
                "exit_code": result.exit_code,
                "ms": round(result.seconds * 1000),
                "timed_out": result.timed_out,
                "output_cut": result.output_cut,
                "warnings": list(result.warnings),
            },
            output=artifacts.put_text(result.output),
            tree=self._box.note() if quiet else "",
            usage=Amount(tool_calls=1),
        )

    def run_for_agent(
        self, argv: Sequence[str], *, cwd: Path | None, timeout: float, stdin: str
    ) -> CommandResult:
        """Run the command line of an agent, in the workspace or, to only answer, beside it."""
        content = stdin.encode("utf-8", "replace")
        if cwd is not None:
            return self._run(argv, timeout=timeout, stdin=content)
        with tempfile.TemporaryDirectory(prefix="loopwarden-agent-") as empty:
            folder = Path(empty)
            sandbox = self._sandbox.confine(folder, hidden=settings.LOOPWARDEN_HIDDEN)
            return self._run(argv, timeout=timeout, stdin=content, folder=folder, sandbox=sandbox)

    def _run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float,
        stdin: bytes = b"",
        folder: Path | None = None,
        sandbox: Sandbox | None = None,
    ) -> CommandResult:
        claim = self._recorder.lease.claim
        result = run_command(
            command,
            cwd=folder or self._box.folder,
            timeout=max(timeout, 0.1),
            ceiling=settings.LOOPWARDEN_COMMAND_SECONDS,
            stdin=stdin,
            env=processes.mark(claim.run_id, claim.token),
            sandbox=sandbox or self._box.confine(self._sandbox),
            cancelled=self._recorder.lease.lost,
        )
        # Interrupted is no verdict: the next worker would replay it as a failed command.
        if CANCELLED in result.warnings:
            raise CallCancelled
        return result


def _digest(name: str, command: str) -> str:
    return digest_of(["command", name, command])


def _result_of(performed: Performed) -> CommandResult:
    return CommandResult(
        exit_code=performed.result["exit_code"],
        output=artifacts.get_text(performed.output),
        seconds=performed.result["ms"] / 1000,
        timed_out=performed.result["timed_out"],
        output_cut=performed.result["output_cut"],
        warnings=tuple(performed.result["warnings"]),
        artifact=performed.output,
    )


class RunWorkspace:
    """`Workspace` of the run: looking is free, an undo is a recorded step."""

    def __init__(self, recorder: Recorder, box: Box) -> None:
        self._recorder = recorder
        self._box = box

    def snapshot(self) -> str:
        """The id of the files as the last step left them."""
        return self._box.snapshot()

    def change(self, characters: int) -> str:
        """The change since the base commit, for a reviewer; empty without a repository."""
        return self._box.packet(characters) if self._box.has_repository else ""

    def undo(self, before: str, after: str) -> None:
        """Take back what changed between two snapshots of this attempt."""
        self._step(before, after, partial(self._box.undo, before, after))

    def undo_attempt(self, attempt: Attempt) -> None:
        """Take back what an earlier attempt did, from its stored snapshots (S4-14).

        With it goes what was done before it waited; an undo it began with itself stays.
        """
        before, after = attempts.round_of(attempt.run_id, attempt.no).tree, attempt.tree_after
        self._step(before, after, partial(self._box.undo_stored, before, after))
        self._box.begin()

    def _step(self, before: str, after: str, undo: Callable[[], None]) -> None:
        def act() -> Performed:
            undo()
            return Performed(result={}, tree=self._box.tree, usage=Amount())

        try:
            performed = self._recorder.step(
                kind=StepKind.UNDO,
                role="undo",
                name="",
                digest=digest_of(["undo", before, after]),
                worst=Amount(),
                act=act,
            )
        except WorkspaceFault as fault:
            raise UndoFailed(str(fault)) from fault
        self._box.follow(performed.tree)
