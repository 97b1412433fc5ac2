"""The tools of the workspace, the same that a working agent uses."""

from __future__ import annotations

from functools import partial

from pydantic import BaseModel

from loops.core.plan import Risk
from workers.desk import RunCheck
from workers.filetools import FILE_TOOLS, FileTool
from workers.tools.base import Tool, ToolContext

RUN_CHECK = "run_check"


def workspace_tools() -> list[Tool]:
    """Read, list, search, edit and write files, and run a named check."""
    files = [
        Tool(
            name=tool.name,
            about=tool.spec.description,
            risk=Risk.REVERSIBLE_WRITE if tool.changes else Risk.READ,
            arguments=tool.arguments,
            run=partial(_use, tool),
            in_workspace=True,
            needs="workspace",
        )
        for tool in FILE_TOOLS.values()
    ]
    check = Tool(
        name=RUN_CHECK,
        about="Run one of the task's checks and see how it ends.",
        # A check is a command: it may write whatever it likes to the workspace.
        risk=Risk.REVERSIBLE_WRITE,
        arguments=RunCheck,
        run=_not_here,
        in_workspace=True,
        needs="checks",
    )
    return [*files, check]


def _use(tool: FileTool, context: ToolContext, given: BaseModel) -> str:
    return tool.use(context.folder, given.model_dump())


def _not_here(_context: ToolContext, _given: BaseModel) -> str:
    raise NotImplementedError("a check is a command: `RunCommands` records it as one")
