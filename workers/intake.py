"""Takes a task in with its repository: everything is looked at before anything is stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loops.models import Project, Task
from loops.store.submit import (
    Refused,
    RequestKey,
    Submission,
    known_task,
    problems_of,
    submit,
)

if TYPE_CHECKING:
    from django.contrib.auth.models import User


@dataclass(frozen=True, kw_only=True)
class TaskRequest:
    """A task as page, API and command line send it."""

    pattern: str
    title: str
    spec: dict[str, Any]
    limits: dict[str, Any]
    local_aim: str = ""
    agents: dict[str, str] = field(default_factory=dict)
    on_limit: str = ""
    priority: int = 0
    repo: str | None = None
    """Path of a git repository on this machine."""
    include_dirty: bool = False
    """Take changes along that are not committed yet."""


def accept(
    request: TaskRequest,
    *,
    project: Project,
    user: User | None,
    request_key: RequestKey | None = None,
) -> Task:
    """Store the task, or raise `Refused` with every problem, or `KeyReused`."""
    if request_key is not None and (known := known_task(request_key)):
        return known
    source, found = _look_at(request)
    submission = Submission(
        pattern=request.pattern,
        title=request.title,
        spec=request.spec,
        limits=request.limits,
        local_aim=request.local_aim,
        agents=request.agents,
        on_limit=request.on_limit,
        priority=request.priority,
        source=source.as_dict() if source else ({} if request.repo else None),
    )
    problems = [*problems_of(submission), *found]
    if problems or (request.include_dirty and source is None):
        raise Refused(problems)
    if source is not None and request.include_dirty and source.dirty:
        submission = _with_dirty(submission, source)
    return submit(submission, project=project, user=user, request_key=request_key)
