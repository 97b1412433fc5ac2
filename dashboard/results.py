"""Says how to take a run's result."""

from __future__ import annotations

from loops.models import Run


def how_to_take(run: Run) -> list[str]:
    """Lines for the terminal: what came out, where it lies, which commands fetch it."""
    result = run.result or {}
    lines = []
    if result.get("file"):
        lines.append(f"Result: {result['file']}, {result['path']}")
    if result.get("branch"):
        lines.append(f"Result: branch {result['branch']}, patch {result['patch_path']}")
    elif result.get("patch_path"):
        lines.append(f"Not accepted yet: patch {result['patch_path']}")
    lines += [f"  {command}" for command in result.get("take", [])]
    if result.get("last_fix_unverified"):
        lines.append("The last fix was not checked again: the guard comes first.")
    return lines
