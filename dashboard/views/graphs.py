"""The list of graphs and the page of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.db.models import Count, F, Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from dashboard.clocks import ending
from dashboard.consumers import MOST_TOPICS
from dashboard.graph_drawing import draw
from dashboard.graph_grant_form import GrantForm
from dashboard.queues import open_items, rail_attempts
from dashboard.views.fragments import live_page
from loops import clock
from loops.core.graph import EdgeKind
from loops.figures import meters
from loops.graph_figures import (
    effective_status,
    graph_sentence,
    graph_words,
    signal_words,
    waiting_words,
)
from loops.models import Attempt, Graph, GraphEdge, GraphNode, GraphStatus, Run
from loops.store.graph_grants import NothingStarts, raise_limits
from workers import graphs as moving

PAGE = 50
MOST_EVENTS = 30
_GOVERNOR = Q(nodes__name=F("governor"))


@login_required
@require_safe
def graphs(request: HttpRequest) -> HttpResponse:
    """Newest first."""
    older = request.GET.get("older", "")
    found = Graph.objects.select_related("project").annotate(
        tasks_all=Count("nodes", filter=~_GOVERNOR),
        tasks_ended=Count("nodes", filter=~_GOVERNOR & ~Q(nodes__signal="")),
    )
    if older.isascii() and older.isdigit() and len(older) < 19:
        found = found.filter(pk__lt=int(older))
    rows = list(found.order_by("-pk")[: PAGE + 1])
    more, rows = rows[PAGE:], rows[:PAGE]
    context: dict[str, Any] = {
        "section": "graphs",
        "rows": [{"graph": graph, "status": graph_words(graph)} for graph in rows],
        "older": rows[-1].pk if more else None,
        "paged": bool(older),
    }
    return live_page(request, "graphs", "parts/graph_list", context)


@dataclass(frozen=True, kw_only=True)
class NodeLine:
    """One node as the page shows it."""

    node: GraphNode
    run: Run | None
    attempts: list[Attempt]
    waits: tuple[str, str] | None
    """Where it stands while it has no run."""
    signal: tuple[str, str] | None
    is_governor: bool
    title: str
    """Of its task, without the graph's own in front of it."""
    after: list[str]
    """What it waits for, each with the kind of its edge."""


@login_required
@require_safe
def graph(request: HttpRequest, pk: int) -> HttpResponse:
    """The drawing, the tasks, the budget and the history of one graph."""
    return _page(request, _graph_or_404(pk))


@login_required
@require_POST
def grant(request: HttpRequest, pk: int) -> HttpResponse:
    """Raise what its tasks share; what cannot be is said at its field."""
    assert isinstance(request.user, User)  # noqa: S101 - login_required has seen to it
    found = _graph_or_404(pk)
    form = GrantForm(found, request.POST)
    if not form.is_valid():
        return _page(request, found, form=form, status=400)
    try:
        added = raise_limits(pk, form.caps(), user=request.user)
    except NothingStarts as error:
        messages.error(request, str(error))
    else:
        if not added:
            messages.info(request, "Nothing was raised: the limits stand there already.")
    return redirect("graph", pk=pk)


def _page(
    request: HttpRequest, found: Graph, *, form: GrantForm | None = None, status: int = 200
) -> HttpResponse:
    nodes = list(found.nodes.select_related("task"))
    edges = list(found.edges.select_related("source", "target"))
    runs = {run.task_id: run for run in found.runs.select_related("task").order_by("number")}
    attempts = rail_attempts(list(runs.values()))
    lines = {}
    for node in nodes:
        run = runs.get(node.task_id) if node.task_id else None
        lines[node.name] = NodeLine(
            node=node,
            run=run,
            attempts=attempts[run.pk] if run else [],
            waits=None if run else waiting_words(found, node),
            signal=signal_words(node),
            is_governor=node.name == found.governor,
            title=run.task.title.removeprefix(f"{found.title}: ") if run else "",
            after=[_named(edge) for edge in edges if edge.target_id == node.pk],
        )
    live = [run.pk for run in runs.values() if not run.is_terminal][: MOST_TOPICS - 2]
    context: dict[str, Any] = {
        "section": "graphs",
        "graph": found,
        "status": graph_words(found),
        "why": graph_sentence(found),
        "over": effective_status(found)[0] is GraphStatus.ENDED,
        "meters": meters(found),
        "clocks": [left] if (left := ending(found, clock.now())) else [],
        "grant_form": form or _grant_form(found),
        "drawing": draw(nodes, edges, found.governor, lines),
        "lines": list(lines.values()),
        "items": list(open_items().filter(run__graph=found).select_related("run__task")[:PAGE]),
        "successor": getattr(found, "successor", None),
        "events": found.events.order_by("-seq")[:MOST_EVENTS],
        "topics": [f"graph.{found.pk}", *(f"run.{run_pk}" for run_pk in live)],
    }
    return live_page(request, "graph", "parts/graph", context, status=status)


def _grant_form(found: Graph) -> GrantForm | None:
    """None where nothing could be raised, or would be of use."""
    if found.status != GraphStatus.RUNNING or found.cancel_requested or found.is_late:
        return None
    form = GrantForm(found)
    return form if form.fields else None


@login_required
@require_POST
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop the graph and everything that it started."""
    if not moving.cancel(_graph_or_404(pk), actor=request.user.get_username()):
        messages.info(request, "The graph has ended already, or its cancel was asked for before.")
    return redirect("graph", pk=pk)


def _named(edge: GraphEdge) -> str:
    name = edge.source.name
    return name if edge.kind == EdgeKind.DEPENDENCY else f"{name} ({edge.kind})"


def _graph_or_404(pk: int) -> Graph:
    found = Graph.objects.select_related("project", "successor", "created_by").filter(pk=pk).first()
    if found is None:
        raise Http404
    return found
