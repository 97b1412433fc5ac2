"""Graphs over HTTP."""

from __future__ import annotations

import re
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.urls import reverse
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard.api.bodies import errors_of, read
from dashboard.api.graph_bodies import GrantBody, document_name, read_graph
from dashboard.api.graph_shapes import graph_head, graph_shape
from dashboard.api.paging import answer, page
from dashboard.api.problems import Refusal
from dashboard.api.tasks import request_key, token_of
from loops.models import Graph
from loops.store import graph_grants
from loops.store.submit import KeyReused, Refused
from workers import graphs
from workers.graph_intake import accept_graph, notes_of

_KEY = re.compile(r"[Gg]-([0-9]{1,18})|([0-9]{1,18})")


def graphs_of(request: Request) -> QuerySet[Graph]:
    """The graphs that the token may see: its own project's."""
    mine = Graph.objects.filter(project=token_of(request).project_id)
    return mine.select_related("project", "successor")


def graph_or_404(request: Request, key: str) -> Graph:
    """One of them, by number or by key: 3 or G-3."""
    match = _KEY.fullmatch(key)
    found = graphs_of(request).filter(pk=int(match[1] or match[2])).first() if match else None
    if found is None:
        raise Http404
    return found


class Graphs(APIView):
    """List and submit."""

    def get(self, request: Request) -> Response:
        """Newest first."""
        found, cursor = page(request, graphs_of(request))
        return answer(request, [graph_head(graph) for graph in found], cursor)

    def post(self, request: Request) -> Response:
        """Submit a graph: 202, it runs on its own from here."""
        token = token_of(request)
        asked, unread = read_graph(request.data)
        try:
            graph = accept_graph(
                asked,
                project=token.project,
                user=token.user,
                request_key=request_key(request, token, _in_order(request.data)),
                unread=unread,
            )
        except Refused as error:
            detail = "The graph cannot be taken as it is."
            raise Refusal(
                400, "refused", detail, errors_of(error.problems, document_name)
            ) from error
        except KeyReused as error:
            raise Refusal(422, "idempotency_key_reused", str(error)) from error
        location = reverse("api-graph", args=[str(graph.pk)])
        stored = graph_or_404(request, str(graph.pk))
        shape = {**graph_shape(stored), "notes": notes_of(graph)}
        return Response(shape, status=202, headers={"Location": location})


class OneGraph(APIView):
    """One graph with its nodes and edges."""

    def get(self, request: Request, key: str) -> Response:
        """The figures of its page."""
        return Response(graph_shape(graph_or_404(request, key)))


class GraphGrants(APIView):
    """Give a graph more of what its tasks share."""

    def post(self, request: Request, key: str) -> Response:
        """200 with the graph. Limits are named as they shall be: sent twice, it is harmless."""
        graph = graph_or_404(request, key)
        caps = read(GrantBody, request.data).as_caps()
        if problems := list(graph_grants.problems_of(graph, caps)):
            detail = "The limits cannot be raised to this."
            raise Refusal(400, "refused", detail, errors_of(problems, document_name))
        try:
            graph_grants.raise_limits(graph.pk, caps, user=token_of(request).user)
        except graph_grants.NothingStarts as error:
            raise Refusal(409, "not_possible_now", str(error)) from error
        return Response(graph_head(graph_or_404(request, key)))


class CancelGraph(APIView):
    """Stop a graph."""

    def post(self, request: Request, key: str) -> Response:
        """202 with the graph; everything that it started is cancelled with it."""
        graph = graph_or_404(request, key)
        graphs.cancel(graph, actor=token_of(request).user.get_username())
        return Response(graph_head(graph_or_404(request, key)), status=202)


def _in_order(body: Any) -> Any:
    """The body for its digest: the order of the nodes is the order in which they start."""
    nodes = body.get("nodes")
    return {**body, "nodes": list(nodes.items())} if isinstance(nodes, dict) else body
