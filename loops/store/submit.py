"""Takes a task in: every problem is reported at once, and nothing is stored unless all is well."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, transaction
from django.db.models.functions import Now
from pydantic import ValidationError

from loops import clock
from loops.core.errors import ContractError, LoopwardenError
from loops.core.limits import Limits
from loops.crashpoints import reach
from loops.models import (
    AgentProfile,
    Graph,
    IdempotencyKey,
    LimitGrant,
    OnLimit,
    Project,
    Run,
    Task,
)
from loops.patterns import UnknownPattern, all_patterns, get
from loops.patterns.base import Pattern, SpecModel
from loops.patterns.wrong_fields import WrongField, wrong_fields
from loops.store import events, lanes

if TYPE_CHECKING:
    from django.contrib.auth.models import User

TITLE_LENGTH = 200
NO_TEXT = "contains a NUL or half of a surrogate pair, which is no text"
LIMIT_NAMES = tuple(item.name for item in fields(Limits))


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with a submission, with the remedy in its message."""

    field: str
    """Dotted name, such as `spec.checks` or `limits.iterations`."""
    code: str
    message: str


class Refused(LoopwardenError):
    """The submission cannot be taken as it is. Nothing was stored."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{p.field}: {p.message}" for p in problems))
        self.problems = problems


class KeyReused(LoopwardenError):
    """This Idempotency-Key was used for another request. Use a new key for a new request."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What somebody asks for, before anything is checked."""

    pattern: str
    title: str
    spec: dict[str, Any]
    limits: dict[str, Any]
    local_aim: str = ""
    """Defaults to the title."""
    agents: dict[str, str] = field(default_factory=dict)
    on_limit: str = ""
    """Defaults to the pattern's own."""
    priority: int = 0
    source: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    """What a person should know of it; each becomes an event of the run."""

    def digest(self) -> str:
        """The same for the same request, whatever the order of its keys."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class RequestKey:
    """Who sent which Idempotency-Key, and what the request was."""

    owner: str
    key: str
    request_digest: str


def problems_of(submission: Submission) -> list[Problem]:
    """Everything that is wrong with it, in the order of the form; empty when it can be taken."""
    found = _title_problems(submission)
    try:
        pattern = get(submission.pattern)
    except UnknownPattern:
        pattern = None
        found.append(_pattern_problem(submission.pattern))
    spec, wrong = (None, []) if pattern is None else _read_spec(pattern, submission.spec)
    usual = 3 if pattern is None else pattern.default_limits.iterations
    found += [*wrong, *_limit_problems(submission.limits, usual)]
    found += _agent_problems(pattern, submission)
    if pattern is not None:
        found += _misfits(pattern, spec, submission, found)
    if submission.on_limit and submission.on_limit not in OnLimit.values:
        message = "must be `gate` or `stop`"
        found.append(Problem(field="on_limit", code="unknown", message=message))
    return found


def together(unread: Sequence[Problem], found: Iterable[Problem]) -> list[Problem]:
    """What could not be read, and all that was found beside it.

    What is said of a field that was not read is said of a value that nobody sent.
    """
    shut = {problem.field for problem in unread}
    return [*unread, *(problem for problem in found if not shut.intersection(_path(problem)))]


def text_problem(field: str) -> Problem:
    """A text that no database takes."""
    return Problem(field=field, code="bad_text", message=NO_TEXT)


def _path(problem: Problem) -> Iterator[str]:
    """The field, and everything that it lies in."""
    name = problem.field
    while name:
        yield name
        name = name.rpartition(".")[0]


def _pattern_problem(name: str) -> Problem:
    known = [pattern.name for pattern in all_patterns()]
    if not name:
        message = f"is missing{_guess(name, known)}"
        return Problem(field="pattern", code="missing", message=message)
    message = f"unknown pattern {name!r}{_guess(name, known)}"
    return Problem(field="pattern", code="unknown", message=message)


def submit(
    submission: Submission,
    *,
    project: Project,
    user: User | None,
    request_key: RequestKey | None = None,
) -> Task:
    """Store the task with its first run, queued. Talks to no broker, so Redis may be away.

    With a request key, the same request gives the same task however often it is sent. Raises
    `Refused` with every problem, or `KeyReused`.
    """
    if request_key is not None and (known := known_task(request_key)):
        return known
    problems = problems_of(submission)
    if problems:
        raise Refused(problems)
    try:
        with transaction.atomic():
            task = store(submission, project, user)
            if request_key is not None:
                IdempotencyKey.objects.create(task=task, **asdict(request_key))
            reach("submitting")
    except IntegrityError:
        # Ten equal requests at once: one of them stored its key, the others answer with its task.
        if request_key is not None and (known := known_task(request_key)):
            return known
        raise
    reach("submitted")
    return task


def start_run(task: Task, *, user: User | None) -> Run:
    """A new run of the task with the task's own limits. Call it inside a transaction."""
    limits = Limits(**task.limits)
    caps = {k: v for k, v in limits.as_dict().items() if k != "deadline_seconds"}
    run = Run.objects.create(
        task=task,
        graph_id=task.graph_id,
        lane=lanes.lane_of(task),
        priority=task.priority,
        number=task.runs.count() + 1,
        next_at=Now(),
        deadline_at=_deadline(task, limits.deadline_seconds),
        **{f"limit_{axis}": cap for axis, cap in caps.items()},
    )
    # By the database's clock, as all that it is compared with.
    Run.objects.filter(pk=run.pk).update(created_at=Now())
    LimitGrant.objects.create(run=run, granted_by=user, **caps)
    actor = user.get_username() if user else events.SYSTEM
    events.record(run.pk, "submitted", "submitted", actor=actor, nudge=True)
    return run


def _deadline(task: Task, seconds: int | None) -> datetime | None:
    """The task's own, from now on, or its graph's, whichever comes first."""
    own = deadline_after(seconds)
    shared = task.graph.deadline_at if task.graph else None
    return min((one for one in (own, shared) if one is not None), default=None)


def deadline_after(seconds: int | None) -> datetime | None:
    """So many seconds from now, by the database's clock; None for no deadline."""
    return clock.now() + timedelta(seconds=seconds) if seconds else None


def store(
    submission: Submission, project: Project, user: User | None, *, graph: Graph | None = None
) -> Task:
    """Write a task that has no problems, with its first run. Call it inside a transaction."""
    pattern = get(submission.pattern)
    task = Task.objects.create(
        project=project,
        pattern=pattern.name,
        title=submission.title.strip(),
        local_aim=submission.local_aim.strip() or submission.title.strip(),
        spec=pattern.spec(**submission.spec).model_dump(mode="json"),
        agents=submission.agents,
        limits=Limits(**submission.limits).as_dict(),
        on_limit=submission.on_limit or pattern.default_on_limit,
        priority=submission.priority,
        source=submission.source,
        graph=graph,
        created_by=user,
    )
    run = start_run(task, user=user)
    for note in submission.notes:
        events.record(run.pk, "noted", note)
    return task


def known_task(request_key: RequestKey) -> Task | None:
    """The task that this request made before, if any. Raises `KeyReused` for another request."""
    found = _known(request_key)
    return None if found is None else found.task


def known_graph(request_key: RequestKey) -> Graph | None:
    """The same for a graph."""
    found = _known(request_key)
    return None if found is None else found.graph


def _known(request_key: RequestKey) -> IdempotencyKey | None:
    found = (
        IdempotencyKey.objects.select_related("task", "graph")
        .filter(owner=request_key.owner, key=request_key.key)
        .first()
    )
    if found is not None and found.request_digest != request_key.request_digest:
        raise KeyReused
    return found


def _title_problems(submission: Submission) -> list[Problem]:
    title = submission.title.strip()
    if not title:
        return [Problem(field="title", code="missing", message="say in a few words what it is")]
    if len(title) > TITLE_LENGTH:
        message = f"is {len(title)} characters long, at most {TITLE_LENGTH} fit"
        return [Problem(field="title", code="too_long", message=message)]
    return []


def _read_spec(
    pattern: Pattern[Any, Any], spec: dict[str, Any]
) -> tuple[SpecModel | None, list[Problem]]:
    known = list(pattern.spec.model_fields)
    try:
        return pattern.spec(**spec), []
    except ValidationError as error:
        return None, [_spec_problem(wrong, known) for wrong in wrong_fields(error)]


def _spec_problem(wrong: WrongField, known: list[str]) -> Problem:
    guess = _guess(wrong.name, known) if wrong.code == "extra_forbidden" else ""
    name = f"spec.{wrong.name}" if wrong.where else "spec"
    return Problem(field=name, code=wrong.code, message=f"{wrong.message}{guess}")


def _limit_problems(limits: dict[str, Any], usual: int) -> list[Problem]:
    found = [
        Problem(
            field=f"limits.{name}",
            code="unknown",
            message=f"there is no such limit{_guess(name, LIMIT_NAMES)}",
        )
        for name in limits
        if name not in LIMIT_NAMES
    ]
    if limits.get("iterations") is None:
        message = f"is missing: say how many iterations are allowed, for example {usual}"
        found.append(Problem(field="limits.iterations", code="missing", message=message))
    for name in LIMIT_NAMES:
        try:
            Limits(**{"iterations": 1} | ({} if limits.get(name) is None else {name: limits[name]}))
        except ContractError as error:
            message = str(error).removeprefix(f"limits.{name} ")
            found.append(Problem(field=f"limits.{name}", code="out_of_range", message=message))
    return found


def _agent_problems(pattern: Pattern[Any, Any] | None, submission: Submission) -> list[Problem]:
    names = set(submission.agents.values())
    known = set(AgentProfile.objects.filter(name__in=names).values_list("name", flat=True))
    found = []
    for role, name in submission.agents.items():
        if pattern is not None and role not in pattern.roles and not pattern.open_roles:
            message = f"{pattern.name} has no such role{_guess(role, list(pattern.roles))}"
        elif name not in known:
            message = f"there is no agent profile {name!r}"
        else:
            continue
        found.append(Problem(field=f"agents.{role}", code="unknown", message=message))
    return found


def _misfits(
    pattern: Pattern[Any, Any],
    spec: SpecModel | None,
    submission: Submission,
    found: Sequence[Problem],
) -> list[Problem]:
    """What does not fit together, as far as its parts are right in themselves."""
    counted = all(problem.field != "limits.iterations" for problem in found)
    misfits = pattern.misfits(
        spec,
        iterations=submission.limits["iterations"] if counted else None,
        roles=submission.agents,
        has_workspace=submission.source is not None,
    )
    return [Problem(field=m.field, code="does_not_fit", message=m.message) for m in misfits]


def _guess(name: str, known: list[str] | tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(sorted(known))}"
