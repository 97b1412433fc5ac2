"""Says how to take a run's result."""

from __future__ import annotations

from loops.core.lifecycle import RunStatus
from loops.models import Run


def how_to_take(run: Run) -> list[str]:
    """Lines for the terminal: what came out, where it lies, which commands fetch it."""
    result = run.result or {}
    word = "Result" if run.status == RunStatus.SUCCEEDED else "So far, not accepted"
    lines = []
    if run.status == RunStatus.SUCCEEDED and not result:
        lines.append("Nothing had to be changed.")
    if result.get("path"):
        lines.append(f"{word}: {result['path']}")
    if result.get("branch"):
        lines.append(f"{word}: branch {result['branch']} or patch {result['patch_path']}")
        branch, patch = result["take"]
        lines += [f"  take the branch:  {branch}", f"  or the patch:     {patch}"]
    elif result.get("patch_path"):
        lines.append(f"{word}: patch {result['patch_path']}")
    if result.get("passed_quota_skipped"):
        lines.append("A check was skipped because a quota was used up: this is no true green.")
    if result.get("last_fix_unverified"):
        lines.append("The last fix was not checked again: the guard comes first.")
    return lines
