"""Hands the result over: a branch in the control repository, a patch, the project's own hook."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loops.core.effects import CommandResult
from loops.core.errors import WorkspaceFault
from workers.commands import run_command
from workers.control import ControlRepo
from workers.result import diff
from workers.sandbox import Sandbox
from workers.source import commit_tree
from workers.text import clean_text

_RUN_HOOK = "git add -A && GIT_INDEX_FILE=.git/index GIT_EDITOR=: exec .git/hooks/pre-commit"


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The result of a run, for the user to take."""

    branch: str
    commit: str
    patch: bytes
    """Applies to the base with `git apply`."""


def deliver(control: ControlRepo, *, number: int, title: str, base: str, tree: str) -> Delivery:
    """One commit with `tree` on top of `base`, on the branch `loopwarden/t-<number>`.

    Delivering the same tree again changes nothing. Raises `WorkspaceFault` when somebody else
    moved the branch at the same time.
    """
    branch = f"loopwarden/t-{number}"
    git = control.git
    found = git.attempt("rev-parse", "--verify", "-q", f"refs/heads/{branch}")
    old = found.out.decode().strip()
    patch = diff(git, base, tree)
    if old and _facts(control, old) == (tree, base):
        return Delivery(branch=branch, commit=old, patch=patch)
    subject = " ".join(clean_text(title).split()) or f"Task {number}"
    commit = commit_tree(git, tree, base, f"{subject}\n", at=int(time.time()))
    git.run("update-ref", f"refs/heads/{branch}", commit, old or "0" * len(commit))
    return Delivery(branch=branch, commit=commit, patch=patch)


def _facts(control: ControlRepo, commit: str) -> tuple[str, str]:
    names = (f"{commit}^{{tree}}", f"{commit}^")
    tree, parent = (control.git.line("rev-parse", "--verify", name) for name in names)
    return tree, parent


def run_pre_commit_hook(
    hook: bytes,
    workspace: Path,
    *,
    sandbox: Sandbox,
    timeout: float,
    env: Mapping[str, str] | None = None,
) -> CommandResult:
    """Stage everything in the workspace and run the project's pre-commit hook there.

    Not passed means that nothing may be delivered without a person. The hook may change files:
    take a snapshot afterwards. `sandbox` is confined to this workspace already.
    """
    hooks = workspace / ".git" / "hooks"
    if hooks.is_symlink() or hooks.is_file():
        hooks.unlink()
    if (workspace / ".git").is_symlink() or not (workspace / ".git").is_dir():
        raise WorkspaceFault("the workspace has lost its .git folder: the hook cannot run there")
    hooks.mkdir(exist_ok=True)
    script = hooks / "pre-commit"
    script.unlink(missing_ok=True)
    with script.open("xb") as file:
        file.write(hook)
    script.chmod(0o755)
    return run_command(_RUN_HOOK, cwd=workspace, timeout=timeout, sandbox=sandbox, env=env)
