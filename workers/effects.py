"""Commands of one attempt: each one recorded, bounded and charged."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from django.conf import settings

from loops.core.canonical import digest as digest_of
from loops.core.effects import CommandResult
from loops.core.limits import Amount
from loops.models import StepKind
from loops.store import artifacts
from workers.box import Box
from workers.commands import run_command
from workers.recorder import Performed, Recorder
from workers.sandbox import Sandbox


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

    def check_for_agent(self, name: str, command: str) -> CommandResult:
        """Run a check because an agent wants to see it: it is no verdict of the loop."""
        return self._step(StepKind.TOOL_CALL, name, command)

    def _step(self, kind: StepKind, name: str, command: str) -> CommandResult:
        performed = self._recorder.step(
            kind=kind,
            role=name,
            name=command,
            digest=digest_of(["command", name, command]),
            worst=Amount(tool_calls=1),
            act=partial(self._perform, command),
        )
        self._box.follow(performed.tree)
        return CommandResult(
            exit_code=performed.result["exit_code"],
            output=artifacts.get_text(performed.output),
            seconds=performed.result["ms"] / 1000,
            timed_out=performed.result["timed_out"],
            output_cut=performed.result["output_cut"],
            warnings=tuple(performed.result["warnings"]),
            artifact=performed.output,
        )

    def _perform(self, command: str) -> Performed:
        result = self._run(command, timeout=self._recorder.lease.seconds_left)
        return Performed(
            result={
                "exit_code": result.exit_code,
                "ms": round(result.seconds * 1000),
                "timed_out": result.timed_out,
                "output_cut": result.output_cut,
                "warnings": list(result.warnings),
            },
            output=artifacts.put_text(result.output),
            tree=self._box.note(),
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
            sandbox = self._sandbox.confine(folder, hidden=[settings.DATA_DIR])
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
        return run_command(
            command,
            cwd=folder or self._box.folder,
            timeout=max(timeout, 0.1),
            ceiling=settings.LOOPWARDEN_COMMAND_SECONDS,
            stdin=stdin,
            sandbox=sandbox or self._box.confine(self._sandbox),
            cancelled=self._recorder.lease.lost,
        )
