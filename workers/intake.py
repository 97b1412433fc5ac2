"""Takes a task in with its repository: everything is looked at before anything is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from pydantic import ValidationError

from loops.core.errors import WorkspaceFault
from loops.core.text import cleaned
from loops.models import AgentProfile, Event, Project, Task
from loops.patterns import UnknownPattern, get
from loops.patterns.plan_citations import HTTP_GET
from loops.patterns.plan_execute_review import WORKSPACE_TOOLS
from loops.patterns.wrong_fields import wrong_fields
from loops.store import artifacts
from loops.store.submit import (
    Problem,
    Refused,
    RequestKey,
    Submission,
    known_task,
    problems_of,
    submit,
    text_problem,
    together,
)
from workers.agents import UnknownProvider
from workers.profiles import provider_of
from workers.source import DirtyCapture, Source, capture_dirty, export_history, inspect_source

if TYPE_CHECKING:
    from django.contrib.auth.models import User


_FIELDS = {"repo": "source.repo"}
"""Of a request, where a submission calls them otherwise."""


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
    roots: Sequence[Path] | None = None,
    unread: Sequence[Problem] = (),
) -> Task:
    """Store the task, or raise `Refused` with every problem, or `KeyReused`.

    `roots` are the folders that its repository may come from, else those of the settings.
    `unread` are problems that kept fields from being read: they are reported together with
    everything that is found here.
    """
    if request_key is not None and (known := known_task(request_key)):
        return known
    request, bad_texts = readable(request)
    submission = submission_of(request)
    problems = problems_of(submission) + provider_problems(submission)
    source, dirty = None, None
    try:
        source, dirty = look_at(request, settings.LOOPWARDEN_REPO_ROOTS if roots is None else roots)
    except WorkspaceFault as fault:
        problems.append(Problem(field="source.repo", code="unusable", message=str(fault)))
    if found := together([*unread, *bad_texts], problems):
        raise Refused(found)
    if source is not None:
        submission = replace(
            submission, source=stored_source(source, dirty, asked=request.repo or "")
        )
    submission = replace(submission, notes=shared_models(submission))
    return submit(submission, project=project, user=user, request_key=request_key)


def readable(request: TaskRequest) -> tuple[TaskRequest, list[Problem]]:
    """The request with texts that can be looked at, and which of them cannot be stored."""
    texts, places = cleaned(asdict(request))
    bad = [text_problem(_FIELDS.get(place, place)) for place in places]
    return (TaskRequest(**texts), bad) if bad else (request, [])


def submission_of(request: TaskRequest) -> Submission:
    """What is asked for, before its repository is looked at."""
    return Submission(
        pattern=request.pattern,
        title=request.title,
        spec=request.spec,
        limits=request.limits,
        local_aim=request.local_aim,
        agents=request.agents,
        on_limit=request.on_limit,
        priority=request.priority,
        source={"path": request.repo} if request.repo else None,
    )


def notes_of(task: Task) -> list[str]:
    """What to know of a task at once: how its repository is used, and which agents are one."""
    noted = Event.objects.filter(run__task=task, run__number=1, kind="noted").order_by("seq")
    return [*(task.source or {}).get("notes", ()), *noted.values_list("text", flat=True)]


def shared_models(submission: Submission) -> tuple[str, ...]:
    """A reviewer that is the model it reviews shares its blind spots (S0-20).

    The same goes for further reviewers, and for the one who is asked after a refusal.
    """
    profiles = AgentProfile.objects.in_bulk(submission.agents.values(), field_name="name")
    known = {role: provider_of(profiles[name]).identity for role, name in submission.agents.items()}
    reviewers_last = sorted(known, key=lambda role: "reviewer" in role)
    return tuple(
        f"{one} and {other} are the same model: they share blind spots"
        for one, other in combinations(reviewers_last, 2)
        if "reviewer" in other and known[one] and known[one] == known[other]
    )


def declared_tools() -> frozenset[str]:
    """The names of all tools. The operator's own are not loaded for it: that is for workers."""
    own = (entry.partition("=")[0].partition(":")[0].strip() for entry in settings.LOOPWARDEN_TOOLS)
    return frozenset([*WORKSPACE_TOOLS, HTTP_GET, *own])


def tool_problems(submission: Submission) -> list[Problem]:
    """Tools that nobody has declared; a spec that cannot be read has problems of its own."""
    try:
        pattern = get(submission.pattern)
        named = pattern.tools(pattern.spec(**submission.spec)).names
    except (UnknownPattern, ValidationError):
        return []
    known = declared_tools()
    return [
        Problem(
            field="spec.tools",
            code="unknown",
            message=f"there is no tool {name!r}; there are: {', '.join(sorted(known))}",
        )
        for name in named
        if name not in known
    ]


def provider_problems(submission: Submission) -> list[Problem]:
    """Agents that cannot be called at all, or whose calls no cost limit could bound; tools too."""
    profiles = AgentProfile.objects.in_bulk(submission.agents.values(), field_name="name")
    capped, found = submission.limits.get("cost_microusd") is not None, tool_problems(submission)
    for role, name in submission.agents.items():
        if name not in profiles:
            continue
        try:
            priced = provider_of(profiles[name]).priced
        except (UnknownProvider, ValidationError) as error:
            message = f"the settings of {name} cannot be used: {_said(error)}"
            found.append(Problem(field=f"agents.{role}", code="broken_profile", message=message))
            continue
        if capped and not priced:
            message = f"{name} has no price, so a cost limit cannot hold: set one, 0 is a price"
            found.append(Problem(field=f"agents.{role}", code="price_unknown", message=message))
    return found


def _said(error: UnknownProvider | ValidationError) -> str:
    if isinstance(error, UnknownProvider):
        return str(error)
    return "; ".join(str(wrong) for wrong in wrong_fields(error))


def load_source(stored: dict[str, Any]) -> Source:
    """The repository as it was at submission, from the task's `source`."""
    return Source(
        path=Path(stored["path"]),
        git_dir=Path(stored["git_dir"]),
        common_dir=Path(stored["common_dir"]),
        bare=stored["bare"],
        object_format=stored["object_format"],
        shallow=stored["shallow"],
        commit=stored["commit"],
        branch=stored["branch"],
        dirty=False,
        untracked=0,
        dirty_submodules=(),
        has_submodules=False,
        pre_commit_hook=None,
    )


def look_at(
    request: TaskRequest, roots: Sequence[Path]
) -> tuple[Source | None, DirtyCapture | None]:
    """The repository and what is not committed in it, found and captured but not stored."""
    if not request.repo:
        return None, None
    if not Path(request.repo).is_absolute():
        # What a server's own folder is says nothing to the person who sends a path.
        raise WorkspaceFault(f"{request.repo} is no whole path: give it from the root on, /...")
    source = inspect_source(request.repo, roots=roots)
    return source, capture_dirty(source) if request.include_dirty and source.dirty else None


def stored_source(source: Source, dirty: DirtyCapture | None, *, asked: str) -> dict[str, Any]:
    """The source as it stands on the task; its hook and uncommitted changes become artifacts."""
    hook = source.pre_commit_hook
    stored: dict[str, Any] = {
        "path": str(source.path),
        "git_dir": str(source.git_dir),
        "common_dir": str(source.common_dir),
        "bare": source.bare,
        "object_format": source.object_format,
        "shallow": source.shallow,
        "commit": source.commit,
        "branch": source.branch,
        "hook": artifacts.put(hook, "text/plain") if hook else "",
        "notes": _notes(source, include_dirty=dirty is not None, asked=asked),
    }
    if settings.LOOPWARDEN_CARRY_SOURCES:
        stored["pack"] = artifacts.put(export_history(source), "application/x-git-pack")
    if dirty is not None and dirty.pack:
        stored["dirty_commit"] = dirty.commit
        stored["dirty_pack"] = artifacts.put(dirty.pack, "application/x-git-pack")
    return stored


def _notes(source: Source, *, include_dirty: bool, asked: str) -> list[str]:
    """What a person may not expect of the private clone."""
    notes = []
    if Path(asked).expanduser().resolve() != source.path:
        notes.append(f"{asked} lies inside of {source.path}: the whole repository is taken")
    where = f"branch {source.branch}" if source.branch else "a detached HEAD"
    if source.dirty and include_dirty:
        notes.append(f"works on {source.commit[:12]} ({where}) with its uncommitted changes")
    elif source.dirty:
        notes.append(
            f"the repository has uncommitted changes; the run works on {source.commit[:12]}"
            f" ({where}) without them. --include-dirty takes them along"
        )
    if source.has_submodules:
        notes.append("submodules stay empty in the private clone")
    return notes
