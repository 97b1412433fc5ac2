"""What an attempt leaves behind: the result to take, and what a person needs to judge it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings

from loops.core.contract import Continue, Finish, LoopResult, Outcome, Progress, Turn, Wait
from loops.core.text import tail
from loops.models import Run, Step, StepKind
from loops.patterns.base import Pattern
from loops.store import artifacts, attempts
from workers.box import Box
from workers.conclude import Evidence
from workers.sandbox import Sandbox

_TAIL_LINES = 40
_TAIL_CHARACTERS = 8_000
_PACKET_CHARACTERS = 60_000
_MARKS = ("last_fix_unverified", "passed_quota_skipped")
"""Flags of a pattern's state that its result must not hide."""


def gather(
    run: Run,
    pattern: Pattern[Any, Any],
    decision: Turn[Any] | None,
    box: Box,
    sandbox: Sandbox,
) -> Evidence:
    """The evidence of an attempt.

    An attempt that is followed by another leaves only its snapshots. One that ends the run, or
    stops for a person, also delivers what there is: the pattern's own result file, or the change
    of the workspace as a patch and, unless the project's commit hook refuses it, as a branch.
    """
    pack = box.pack()
    stored = artifacts.put(pack, "application/x-git-pack") if pack else ""
    goes_on = isinstance(decision, Continue) and not decision.evaluation.pause
    if goes_on or isinstance(decision, Wait):
        return Evidence(tree=box.tree, pack=stored)
    result: dict[str, Any] = {}
    packet: dict[str, Any] = {"checks": _checks(run)}
    match decision:
        case Finish(result=LoopResult(final_state=state)):
            _own_result(run, pattern, state, result, packet)
        case Continue(progress=Progress(state=state)):
            _own_result(run, pattern, state, result, packet)
    refused = False
    if box.has_repository and box.changed:
        success = isinstance(decision, Finish) and decision.result.outcome is Outcome.SUCCESS
        refused = _deliver(run, box, sandbox, result, packet, hook=success)
    return Evidence(
        tree=box.tree,
        pack=stored,
        result=result or None,
        packet=packet,
        moved=box.moved,
        hook_refused=refused,
    )


def _own_result(
    run: Run,
    pattern: Pattern[Any, Any],
    state: Any,
    result: dict[str, Any],
    packet: dict[str, Any],
) -> None:
    file = pattern.result(state)
    if file is not None:
        content = file.content.encode("utf-8", "replace")
        path = _hand_out(run, file.name, content)
        result |= {"file": file.name, "text": artifacts.put_text(file.content), "path": path}
        packet |= {"code": file.content, "file": file.name}
    dumped = pattern.dump_state(state)
    result |= {mark: True for mark in _MARKS if dumped.get(mark)}


def _deliver(
    run: Run,
    box: Box,
    sandbox: Sandbox,
    result: dict[str, Any],
    packet: dict[str, Any],
    *,
    hook: bool,
) -> bool:
    """Add patch, summary and branch. Returns whether the project's commit hook refused it."""
    verdict = box.run_hook(sandbox, settings.LOOPWARDEN_COMMAND_SECONDS) if hook else None
    patch = box.patch()
    path = _hand_out(run, f"{run.task.key}.patch", patch)
    digest = artifacts.put(patch, "text/x-diff")
    result |= {"patch": digest, "patch_path": path, "files": box.files()}
    packet |= {"patch": digest, "summary": box.packet(_PACKET_CHARACTERS)}
    if verdict is not None:
        packet["hook"] = {
            "passed": verdict.passed,
            "tail": tail(verdict.output, lines=_TAIL_LINES, characters=_TAIL_CHARACTERS),
        }
        if not verdict.passed:
            return True
    delivery = box.deliver()
    if run.graph_id is not None:
        pack = box.handoff_pack(delivery)
        result["handoff"] = artifacts.put(pack, "application/x-git-pack")
    result |= {
        "branch": delivery.branch,
        "commit": delivery.commit,
        "take": box.commands_to_take(delivery, Path(path)),
    }
    return False


def _hand_out(run: Run, name: str, content: bytes) -> str:
    """Write a result where its owner can fetch it, and return the path."""
    folder: Path = settings.DATA_DIR / "results" / run.task.key
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return str(folder / name)


def _checks(run: Run) -> list[dict[str, Any]]:
    """The last result of each check of this round."""
    first = attempts.round_of(run.pk, run.attempt_no).first
    ran = Step.objects.filter(run=run, attempt_no__gte=first, kind=StepKind.CHECK)
    steps = {step.role: step for step in ran.order_by("attempt_no", "seq")}
    return [
        {
            "name": step.role,
            "command": step.name,
            "exit_code": step.result.get("exit_code") if step.result else None,
            "tail": tail(
                artifacts.get_text(step.output), lines=_TAIL_LINES, characters=_TAIL_CHARACTERS
            ),
        }
        for step in steps.values()
    ]
