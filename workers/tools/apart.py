"""Runs a tool of the operator's own in a process of its own, and leaves nothing of it alive.

A thread cannot be ended. A process can: with the tool's time, with its run, and with its worker.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from loops.core.errors import CommandFault
from loops.core.text import clean, tail
from loops.core.tooling import ToolStatus
from workers.commands import run_command
from workers.lease import Lease
from workers.sandbox import NO_SANDBOX
from workers.tools.base import ToolContext
from workers.tools.bounded import MOST_CHARACTERS, Said

GRACE_SECONDS = 2.0
"""So long a tool may take to end by itself once it is told to."""
_POLL_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Use:
    """One use of a tool that lives at `target`, or of its probe."""

    target: str
    context: ToolContext
    arguments: BaseModel
    probe: bool = False

    def written(self) -> str:
        """As the child reads it."""
        context = self.context
        return json.dumps(
            {
                "target": self.target,
                "probe": self.probe,
                "folder": str(context.folder),
                "key": context.idempotency_key,
                "seconds": context.seconds,
                "arguments": self.arguments.model_dump_json(),
            }
        )


def run_apart(use: Use, lease: Lease, *, traces: bool) -> Said:
    """Use the tool with the worker's own environment and rights: it is the operator's code.

    At its deadline, or when its run is stopped, it is told so and ended `GRACE_SECONDS` later. Only
    a `ToolError`, and what kept it from beginning, say that nothing was done (S2-26).
    """
    unsure = ToolStatus.OUTCOME_UNKNOWN if traces else ToolStatus.FAILED
    with tempfile.TemporaryDirectory(prefix="loopwarden-tool-") as name:
        folder = Path(name)
        (folder / "request.json").write_text(use.written())
        try:
            with _told_to_end(folder / "cancelled", use.context.seconds, lease) as over:
                ended = run_command(
                    [sys.executable, "-P", "-m", "workers.tool_process", name],
                    cwd=Path.cwd(),
                    timeout=use.context.seconds + 2 * GRACE_SECONDS,
                    sandbox=NO_SANDBOX,
                    env={**os.environ, "PYTHONPATH": _python_path()},
                    cancelled=over,
                )
        except CommandFault as fault:
            return Said(status=ToolStatus.FAILED, text=clean(str(fault)), error_code="tool_error")
        answer = folder / "answer.json"
        if answer.exists():
            return _said(json.loads(answer.read_text()), unsure)
    if ended.exit_code is None:
        return Said(status=unsure, text="It did not end in time.", error_code="timeout")
    end = clean(tail(ended.output, lines=5, characters=1_000))
    text = f"Its process ended with {ended.exit_code} and without an answer.\n{end}".strip()
    return Said(status=unsure, text=text, error_code="process_died")


def _said(answer: dict[str, str], unsure: ToolStatus) -> Said:
    match answer:
        case {"said": said}:
            return Said(status=ToolStatus.COMPLETED, text=clean(said)[:MOST_CHARACTERS])
        case {"refused": why}:
            return Said(status=ToolStatus.FAILED, text=clean(why), error_code="tool_error")
    code = answer["code"]
    return Said(status=unsure, text=clean(f"{code}: {answer['raised']}"), error_code=code)


@contextmanager
def _told_to_end(marker: Path, seconds: float, lease: Lease) -> Iterator[threading.Event]:
    """Tell the tool when its time is up, and set what is yielded a little later."""
    ended, over = threading.Event(), threading.Event()

    def watch() -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not lease.lost.is_set():
            if ended.wait(_POLL_SECONDS):
                return
        marker.touch()
        if not ended.wait(GRACE_SECONDS):
            over.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield over
    finally:
        ended.set()
        watcher.join()


def _python_path() -> str:
    """Where this process finds its modules; never the folder that a command is started in."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
