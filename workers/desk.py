"""Where a model's tools are used: each use is a step that costs one tool call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path

from pydantic import Field

from loops.core.canonical import digest as digest_of
from loops.core.effects import CommandResult, ToolCall
from loops.core.limits import Amount
from loops.core.text import clean, tail
from loops.models import StepKind
from loops.patterns.watching import says_not_ready
from loops.store import artifacts
from workers.agents.base import ToolSpec
from workers.box import Box
from workers.effects import RunCommands
from workers.filetools import FILE_TOOLS, FileTool, ToolArguments, ToolError, read_arguments
from workers.recorder import Performed, Recorder
from workers.toolwork import Used

Act = Callable[[], tuple[str, bool]]
_CHECK_LINES, _CHECK_CHARACTERS = 200, 20_000
_NAME_CHARACTERS = 120


class RunCheck(ToolArguments):
    """Run one of the task's checks and see how it ends. Known checks:"""

    name: str = Field(description="The name of the check.")


class Desk:
    """The tools of one piece of work: files of the workspace, and the named checks."""

    def __init__(
        self,
        *,
        role: str,
        checks: Mapping[str, str],
        recorder: Recorder,
        box: Box,
        commands: RunCommands,
    ) -> None:
        self.role = role
        self._checks = checks
        self._recorder = recorder
        self._box = box
        self._commands = commands

    @cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as the model is told of them."""
        files = tuple(tool.spec for tool in FILE_TOOLS.values())
        if not self._checks:
            return files
        known = "; ".join(f"{name}: {command}" for name, command in self._checks.items())
        about = f"{RunCheck.__doc__} {known}"
        schema = RunCheck.model_json_schema()
        return (*files, ToolSpec(name="run_check", description=about, schema=schema))

    def admit(self, calls: int) -> None:
        """Raise `LimitReached` unless so many calls fit."""
        self._recorder.refuse_batch(calls)

    def use(self, call: ToolCall) -> Used:
        """What came of it. An unknown tool is refused, and counted."""
        if call.name == "run_check" and self._checks:
            return self._check(call)
        tool = FILE_TOOLS.get(call.name)
        return self._step(call, partial(_file_tool, call, tool, self._box.folder), tool)

    def _check(self, call: ToolCall) -> Used:
        try:
            name = read_arguments(RunCheck, call.arguments).name
            command = self._checks[name]
        except (ToolError, KeyError):
            known = ", ".join(self._checks)
            return self._step(call, lambda: (f"there is no such check; there are: {known}", True))
        result = self._commands.check_for_agent(name, command)
        not_ready = says_not_ready(result.output, result.exit_code)
        return Used(said=_outcome(name, result), not_ready=not_ready)

    def _step(self, call: ToolCall, act: Act, tool: FileTool | None = None) -> Used:
        def perform() -> Performed:
            said, is_error = act()
            changed = tool is not None and tool.changes and not is_error
            return Performed(
                result={"is_error": is_error},
                output=artifacts.put_text(said),
                tree=self._box.note() if changed else "",
                usage=Amount(tool_calls=1),
            )

        arguments = clean(json.dumps(call.arguments, sort_keys=True))
        performed = self._recorder.step(
            kind=StepKind.TOOL_CALL,
            role=self.role,
            name=_title(call),
            digest=digest_of(["tool", clean(call.name), arguments]),
            worst=Amount(tool_calls=1),
            act=perform,
        )
        self._box.follow(performed.tree)
        said = artifacts.get_text(performed.output)
        return Used(said=said, is_error=bool(performed.result["is_error"]))


def _file_tool(call: ToolCall, tool: FileTool | None, folder: Path) -> tuple[str, bool]:
    if tool is None:
        return f"there is no tool called {clean(call.name)!r}", True
    try:
        return tool.use(folder, call.arguments), False
    except ToolError as error:
        return clean(str(error)), True


def _outcome(name: str, result: CommandResult) -> str:
    ending = "timed out" if result.timed_out else f"exited with {result.exit_code}"
    end = tail(result.output, lines=_CHECK_LINES, characters=_CHECK_CHARACTERS)
    return f"{name} {ending}\n{end}"


def _title(call: ToolCall) -> str:
    """The tool and its first argument."""
    first = next(iter(call.arguments.values()), "")
    words = f"{call.name} {first}" if isinstance(first, str) else call.name
    return clean(words).split("\n")[0][:_NAME_CHARACTERS].strip()
