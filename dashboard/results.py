"""Says how to take a run's result."""

from __future__ import annotations

from django.conf import settings

from loops.core.lifecycle import RunStatus
from loops.models import Run


def how_to_take(run: Run) -> list[str]:
    """Lines for the terminal: what came out, where it lies, which commands fetch it."""
    result = run.result or {}
    word = "Result" if run.status == RunStatus.SUCCEEDED else "So far, not accepted"
    lines = []
    if run.status == RunStatus.SUCCEEDED and not result and run.task.source is not None:
        lines.append("Nothing had to be changed.")
    if result.get("path"):
        lines.append(f"{word}: {result['path']}")
    if result.get("branch"):
        lines.append(f"{word}: branch {result['branch']} or patch {result['patch_path']}")
        words = ("take the branch:", "or the patch:   ")
        lines += [f"  {w}  {command}" for w, command in zip(words, result["take"], strict=False)]
    elif result.get("patch_path"):
        lines.append(f"{word}: patch {result['patch_path']}")
    if result.get("passed_quota_skipped"):
        lines.append("A check was skipped because a quota was used up: this is no true green.")
    if run.status == RunStatus.AT_GATE:
        item = run.escalations.order_by("-pk").values_list("pk", flat=True).first()
        lines.append(f"Decide at {settings.ORIGINS[0]}/gate/{item}/")
    if result.get("last_fix_unverified"):
        lines.append("The last fix was not checked again: the guard comes first.")
    return lines
