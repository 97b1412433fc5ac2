"""Takes a graph in: every problem of every node is reported at once, before anything is stored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import IntegrityError, transaction

from loops.core import graph as core
from loops.core.errors import ContractError, WorkspaceFault
from loops.core.graph import EdgeKind, Mode, Signal
from loops.core.limits import Limits
from loops.core.placeholders import PARTS, placeholders
from loops.models import Graph, IdempotencyKey, Project
from loops.models.budget import COUNTED
from loops.patterns import NAMES
from loops.store import graphs
from loops.store.submit import (
    TITLE_LENGTH,
    Problem,
    Refused,
    RequestKey,
    Submission,
    known_graph,
    problems_of,
    together,
)
from workers.graph_inputs import elsewhere, prose
from workers.graphs import react
from workers.intake import (
    TaskRequest,
    look_at,
    provider_problems,
    shared_models,
    stored_source,
    submission_of,
)
from workers.source import DirtyCapture, Source

if TYPE_CHECKING:
    from django.contrib.auth.models import User

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_SHARED = (*COUNTED, "deadline_seconds")
_TEXT_EDGES = (EdgeKind.DATA, EdgeKind.HANDOFF)
Looked = dict[str, tuple[Source | None, DirtyCapture | None]]


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """One node as it is asked for."""

    name: str
    task: TaskRequest | None = None
    """None for the governor, and for a node whose task could not be read at all."""
    source_from: str = ""
    """The node whose delivered files it starts from."""
    on_fail: Signal = Signal.ESCALATION
    """What it means for the graph when its task does not succeed."""
    title: str = ""
    """Of the governor's task."""


@dataclass(frozen=True, kw_only=True)
class GraphRequest:
    """A graph as page, API and command line send it."""

    title: str
    nodes: Sequence[NodeRequest]
    aim: str = ""
    """Defaults to the title."""
    mode: Mode = Mode.SERIAL
    governor: str = ""
    edges: Sequence[core.Edge] = ()
    limits: dict[str, Any] = field(default_factory=dict)
    """Shared by all of its tasks: model_calls, tool_calls, tokens, cost_microusd, and
    deadline_seconds from submission."""

    def contract(self) -> core.Graph:
        """Its rule."""
        return core.Graph(
            aim=self.aim.strip() or self.title.strip(),
            nodes=tuple(node.name for node in self.nodes),
            edges=tuple(self.edges),
            mode=self.mode,
            governor=self.governor,
        )


def accept_graph(
    request: GraphRequest,
    *,
    project: Project,
    user: User | None,
    request_key: RequestKey | None = None,
    roots: Sequence[Path] | None = None,
    unread: Sequence[Problem] = (),
) -> Graph:
    """Store the graph and start what is ready, or raise `Refused`, or `KeyReused`.

    `unread` are problems that kept parts of the document from being read: they are reported
    together with everything that is found here.
    """
    if request_key is not None and (known := known_graph(request_key)):
        return known
    known_roots = settings.LOOPWARDEN_REPO_ROOTS if roots is None else roots
    looked: Looked = {}
    problems = list(_graph_problems(request))
    for node in request.nodes:
        wrong = [*_node_problems(request, node), *_look(node, known_roots, looked)]
        problems += [replace(p, field=f"nodes.{node.name}.{p.field}") for p in wrong]
    if any(problem.field.partition(".")[0] == "edges" for problem in unread):
        # Whether an edge is missing cannot be told while one of them could not be read.
        problems = [problem for problem in problems if problem.code != "no_edge"]
    if found := together(unread, problems):
        raise Refused(found)
    draft = graphs.Draft(
        title=request.title.strip(),
        contract=request.contract(),
        documents={node.name: _document(request, node, looked) for node in request.nodes},
        limits=request.limits,
    )
    try:
        with transaction.atomic():
            graph = graphs.create(draft, project=project, user=user)
            if request_key is not None:
                IdempotencyKey.objects.create(graph=graph, **asdict(request_key))
    except IntegrityError:
        if request_key is not None and (known := known_graph(request_key)):
            return known
        raise
    react(graph.pk)
    return graph


def notes_of(graph: Graph) -> list[str]:
    """What to know at once of its tasks, each with the name of its node."""
    found = []
    for node in graph.nodes.exclude(name=graph.governor):
        submission = Submission(**node.document["submission"])
        said = (*(submission.source or {}).get("notes", ()), *shared_models(submission))
        found += [f"{node.name}: {note}" for note in said]
    return found


def _graph_problems(request: GraphRequest) -> Iterator[Problem]:
    title = request.title.strip()
    if not title:
        yield Problem(field="title", code="missing", message="say in a few words what it is")
    if len(title) > TITLE_LENGTH:
        message = f"is {len(title)} characters long, at most {TITLE_LENGTH} fit"
        yield Problem(field="title", code="too_long", message=message)
    for found in request.contract().problems():
        part, _, at = found.place.partition(".")
        # A document has its nodes by name, the contract has them in their order.
        place = f"nodes.{request.nodes[int(at)].name}" if part == "nodes" and at else found.place
        yield Problem(field=place, code=found.code, message=found.message)
    for node in request.nodes:
        if node.name and not _NAME.fullmatch(node.name):
            message = "a name has up to 40 letters, digits, - and _"
            yield Problem(field=f"nodes.{node.name}", code="bad_name", message=message)
    yield from _veto_problems(request)
    yield from _limit_problems(request.limits)


def _veto_problems(request: GraphRequest) -> Iterator[Problem]:
    said = {node.name: node.on_fail for node in request.nodes}
    for at, edge in enumerate(request.edges):
        if edge.kind is EdgeKind.VETO and said.get(edge.source, Signal.HARD_VETO) in (
            Signal.OK,
            Signal.ESCALATION,
        ):
            message = f"{edge.source} never vetoes: give it `on_fail`, hard_veto or soft_objection"
            yield Problem(field=f"edges.{at}.kind", code="does_not_fit", message=message)


def _limit_problems(limits: dict[str, Any]) -> Iterator[Problem]:
    for name, value in limits.items():
        if name not in _SHARED:
            message = f"a graph has no such limit; there are: {', '.join(_SHARED)}"
            yield Problem(field=f"limits.{name}", code="unknown", message=message)
            continue
        try:
            Limits(**{"iterations": 1, name: value})
        except ContractError as error:
            message = str(error).removeprefix(f"limits.{name} ")
            yield Problem(field=f"limits.{name}", code="out_of_range", message=message)


def _node_problems(request: GraphRequest, node: NodeRequest) -> Iterator[Problem]:
    if node.task is None:
        return
    submission = _submission(request, node)
    yield from problems_of(submission)
    cap = request.limits.get("cost_microusd")
    if cap is not None:
        submission = replace(submission, limits={"cost_microusd": cap, **submission.limits})
    yield from provider_problems(submission)
    if node.source_from:
        yield from _source_problems(request, node)
    if submission.pattern in NAMES:
        yield from _placeholder_problems(request, node, submission)


def _source_problems(request: GraphRequest, node: NodeRequest) -> Iterator[Problem]:
    edges = [(edge.source, edge.kind) for edge in request.edges if edge.target == node.name]
    if (node.source_from, EdgeKind.HANDOFF) not in edges:
        message = f"needs an edge of the kind handoff from {node.source_from} to {node.name}"
        yield Problem(field="source.from", code="no_edge", message=message)
        return
    giver = next((one for one in request.nodes if one.name == node.source_from), None)
    if giver is not None and giver.task is not None and not (giver.task.repo or giver.source_from):
        message = f"{giver.name} has no files to hand on"
        yield Problem(field="source.from", code="does_not_fit", message=message)


def _placeholder_problems(
    request: GraphRequest, node: NodeRequest, submission: Submission
) -> Iterator[Problem]:
    edges = [(edge.source, edge.kind) for edge in request.edges if edge.target == node.name]
    for place, text in prose(submission):
        for found in placeholders(text):
            if found.node and found.part not in PARTS:
                message = f"{found.text}: there are: {', '.join(PARTS)}"
                yield Problem(field=place, code="unknown", message=message)
            if found.node and not any((found.node, kind) in edges for kind in _TEXT_EDGES):
                message = f"{found.text} needs an edge of the kind data from {found.node}"
                yield Problem(field=place, code="no_edge", message=message)
    for place, text in elsewhere(submission):
        for found in placeholders(text):
            message = (
                f"{found.text} may stand in a text for an agent only: no command and no setting"
                " is made of what another task said"
            )
            yield Problem(field=place, code="not_here", message=message)


def _look(node: NodeRequest, roots: Sequence[Path], looked: Looked) -> Iterator[Problem]:
    """Look at each repository once, so that all nodes start from the same commit."""
    if node.task is None or not node.task.repo:
        return
    key = f"{node.task.repo}:{node.task.include_dirty}"
    try:
        if key not in looked:
            looked[key] = look_at(node.task, roots)
    except WorkspaceFault as fault:
        yield Problem(field="source.repo", code="unusable", message=str(fault))


def _submission(request: GraphRequest, node: NodeRequest) -> Submission:
    if node.task is None:
        raise ContractError(f"{node.name} has no task")
    title = node.task.title.strip() or f"{request.title.strip()}: {node.name}"[:TITLE_LENGTH]
    submission = replace(submission_of(node.task), title=title)
    if node.source_from:
        submission = replace(submission, source={"from": node.source_from})
    return submission


def _document(request: GraphRequest, node: NodeRequest, looked: Looked) -> dict[str, Any]:
    if node.task is None:
        default = f"{node.name}: decide on {request.title.strip()}"
        return {"title": (node.title.strip() or default)[:TITLE_LENGTH]}
    submission = _submission(request, node)
    if node.task.repo:
        source, dirty = looked[f"{node.task.repo}:{node.task.include_dirty}"]
        if source is not None:
            submission = replace(
                submission, source=stored_source(source, dirty, asked=node.task.repo)
            )
    return {
        "submission": asdict(submission),
        "source_from": node.source_from,
        "on_fail": node.on_fail.value,
    }
