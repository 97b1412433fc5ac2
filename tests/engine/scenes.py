"""Scenes for engine tests: projects, scripted agents, repositories, a worker driven by hand."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loops.models import AgentProfile, Project, Run, Task
from loops.store import artifacts
from workers import dispatch
from workers.intake import TaskRequest, accept
from workers.iteration import run_iteration

APPROVED = json.dumps({"verdict": "APPROVED", "reasons": []})


def changes(*reasons: str) -> str:
    """A reviewer's answer that asks for changes."""
    return json.dumps({"verdict": "CHANGES_REQUESTED", "reasons": list(reasons)})


def code(text: str) -> str:
    """A coder's answer."""
    return f"```python\n{text}\n```"


def project(slug: str = "default", **facts: Any) -> Project:
    """A project."""
    found, _ = Project.objects.get_or_create(slug=slug, defaults={"name": slug, **facts})
    return found


def agent(name: str, role: str, *answers: str | dict[str, Any], **facts: Any) -> AgentProfile:
    """An agent that gives these answers; 1000 tokens in and 100 out, at 3 000 micro-dollars."""
    usual = {"role": role, "input_tokens": 1000, "output_tokens": 100}
    steps = [usual | ({"text": a} if isinstance(a, str) else a) for a in answers]
    return AgentProfile.objects.create(
        name=name,
        provider="scripted",
        config={"steps": steps},
        **{"input_usd_per_mtok": 2, "output_usd_per_mtok": 10, **facts},
    )


def pair_task(
    coder: Sequence[str | dict[str, Any]],
    reviewer: Sequence[str | dict[str, Any]],
    *,
    name: str = "pair",
    on_limit: str = "",
    **limits: int | None,
) -> Task:
    """A coder_reviewer task whose agents follow these answers."""
    agent(f"{name}-coder", "coder", *coder)
    agent(f"{name}-reviewer", "reviewer", *reviewer)
    return accept(
        TaskRequest(
            pattern="coder_reviewer",
            title=f"{name} task",
            spec={"task": "Write it."},
            limits={"iterations": 3, **limits},
            agents={"coder": f"{name}-coder", "reviewer": f"{name}-reviewer"},
            on_limit=on_limit,
        ),
        project=project(),
        user=None,
    )


def repository(folder: Path, **files: str) -> Path:
    """A git repository with these files in one commit."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    identity = ["-c", "user.name=U", "-c", "user.email=u@example.test"]
    for args in (["init", "-q", "-b", "main"], ["add", "-A"], [*identity, "commit", "-qm", "base"]):
        subprocess.run(["git", *args], cwd=folder, check=True)
    return folder


def fix_task(
    repo: Path,
    check: str,
    fix: str,
    *,
    iterations: int = 5,
    spec: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Task:
    """A check_fix task with one check and one fix."""
    return accept(
        TaskRequest(
            pattern="check_fix",
            title="keep it green",
            spec={"checks": [check], "fixes": [fix], **(spec or {})},
            limits={"iterations": iterations},
            repo=str(repo),
            **facts,
        ),
        project=project(),
        user=None,
    )


def review(strategy: str, feedback: str = "do better") -> str:
    """A reviewer's answer in implement_verify."""
    return json.dumps({"grade": 5, "strategy": strategy, "feedback": feedback})


def verify_task(
    repo: Path,
    writes: Sequence[dict[str, str]],
    reviews: Sequence[str] = (),
    *,
    iterations: int = 3,
    on_limit: str = "",
    tool_calls: int | None = None,
    **spec: Any,
) -> Task:
    """An implement_verify task whose implementer writes these files, attempt by attempt."""
    agent("hand", "implementer", *[{"text": "a long story", "writes": files} for files in writes])
    agent("judge", "reviewer", *reviews)
    return accept(
        TaskRequest(
            pattern="implement_verify",
            title="Send webhooks",
            spec={"task": "Send a webhook for each order.", "yield_after_each": False} | spec,
            limits={"iterations": iterations, "tool_calls": tool_calls},
            agents={"implementer": "hand", "reviewer": "judge"},
            on_limit=on_limit,
            repo=str(repo),
        ),
        project=project(),
        user=None,
    )


def prompt_of(run: Run, role: str, attempt_no: int) -> str:
    """What an agent was asked in an attempt."""
    return artifacts.get_text(run.steps.get(role=role, attempt_no=attempt_no).prompt)


def step(run: Run, worker: str = "worker-1") -> Run:
    """Let a worker run the next attempt, as its message would."""
    Run.objects.filter(pk=run.pk).update(next_at=run.created_at)
    dispatch.admit_waiting()
    run.refresh_from_db()
    run_iteration(run.pk, run.attempt_no, worker=worker)
    run.refresh_from_db()
    return run


def drive(run: Run, most: int = 20) -> Run:
    """Run attempts until the run has ended or waits for a person."""
    for _ in range(most):
        run.refresh_from_db()
        if run.status != "queued":
            return run
        step(run)
    raise AssertionError(f"{run} is not bounded")
