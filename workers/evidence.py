"""What an attempt leaves behind: the result to take, and what a person needs to judge it."""

from __future__ import annotations

from typing import Any

from loops.patterns.base import Pattern

from loops.core.contract import Continue, Finish, Outcome
from loops.models import Run, Step, StepKind
from loops.store import artifacts
from workers.box import Box
from workers.conclude import Evidence
from workers.effects import RunCommands

_TAIL_LINES = 40
_PACKET_CHARACTERS = 60_000


def gather(
    run: Run,
    pattern: Pattern[Any, Any],
    decision: Continue[Any] | Finish[Any] | None,
    box: Box,
    commands: RunCommands,
) -> Evidence:
    """The evidence of an attempt.

    An attempt that is followed by another leaves only its snapshots. One that ends the run, or
    stops for a person, also delivers what there is: the pattern's own result file, or the change
    of the workspace as a patch and, unless the project's commit hook refuses it, as a branch.
    """
    pack = box.pack()
    stored = artifacts.put(pack, "application/x-git-pack") if pack else ""
    if isinstance(decision, Continue):
        return Evidence(tree=box.tree, pack=stored)
    result: dict[str, Any] = {}
    packet: dict[str, Any] = {"checks": _checks(run)}
    if isinstance(decision, Finish):
        _own_result(pattern, decision.result.final_state, result, packet)
    refused = False
    if box.has_repository and box.changed:
        success = isinstance(decision, Finish) and decision.result.outcome is Outcome.SUCCESS
        refused = _deliver(run, box, commands, result, packet, hook=success)
    return Evidence(
        tree=box.tree,
        pack=stored,
        result=result or None,
        packet=packet,
        hook_refused=refused,
    )


def _own_result(
    pattern: Pattern[Any, Any], state: Any, result: dict[str, Any], packet: dict[str, Any]
) -> None:
    file = pattern.result(state)
    if file is not None:
        result |= {"file": file.name, "text": artifacts.put_text(file.content)}
        packet |= {"code": file.content, "file": file.name}
    stored = pattern.dump_state(state)
    if stored.get("last_fix_unverified"):
        result["last_fix_unverified"] = True


def _deliver(
    run: Run,
    box: Box,
    commands: RunCommands,
    result: dict[str, Any],
    packet: dict[str, Any],
    *,
    hook: bool,
) -> bool:
    """Add patch, summary and branch. Returns whether the project's commit hook refused it."""
    patch = artifacts.put(box.patch(), "text/x-diff")
    result |= {"patch": patch, "files": box.files()}
    packet |= {"patch": patch, "summary": box.summary(_PACKET_CHARACTERS)}
    verdict = box.run_hook(commands) if hook else None
    if verdict is not None:
        packet["hook"] = {"passed": verdict.passed, "tail": tail(verdict.output)}
        if not verdict.passed:
            return True
    delivery = box.deliver(f"{run.task.title}\n\n{run.task.key}")
    result |= {"branch": delivery.branch, "commit": delivery.commit, "take": delivery.commands}
    return False


def _checks(run: Run) -> list[dict[str, Any]]:
    steps = Step.objects.filter(run=run, attempt_no=run.attempt_no, kind=StepKind.CHECK)
    return [
        {
            "name": step.role,
            "command": step.name,
            "exit_code": step.result.get("exit_code") if step.result else None,
            "tail": tail(artifacts.get_text(step.output)),
        }
        for step in steps.order_by("seq")
    ]


def tail(text: str) -> str:
    """The last lines of an output."""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
