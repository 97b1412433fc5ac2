"""The form for a new graph: one document, as the command line and the API take it."""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Any

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from dashboard.api.bodies import MOST_BYTES
from dashboard.api.graph_bodies import document_name, read_graph
from dashboard.documents import Unreadable, read_document
from dashboard.graph_documents import EXAMPLE, as_yaml, document_of
from dashboard.projects import default_project
from loops.models import Graph, Project
from loops.store.submit import KeyReused, Problem, Refused, RequestKey
from workers.graph_intake import accept_graph


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def new_graph(request: HttpRequest) -> HttpResponse:
    """A refused document comes back with all of its problems and just as it was typed.

    The example is loaded into an empty field only: nothing that was typed is lost to it.
    """
    if request.method != "POST":
        return _page(request, _again(request))
    text = request.POST.get("document", "").replace("\r\n", "\n")
    if "example" in request.POST:
        blank = not text.strip()
        return _page(request, EXAMPLE if blank else text, fresh=blank, kept=not blank)
    taken = _submit(request, text)
    if isinstance(taken, Graph):
        return redirect(f"{reverse('graph', args=[taken.pk])}?created=graph")
    return _page(request, text, status=400, problems=taken)


def _again(request: HttpRequest) -> str:
    """The document of an older graph that is to be submitted once more."""
    wanted = request.GET.get("from", "")
    if not wanted:
        return ""
    number = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 19 else 0
    graph = Graph.objects.filter(pk=number).first()
    if graph is None:
        raise Http404
    return as_yaml(document_of(graph))


def _page(request: HttpRequest, text: str, *, status: int = 200, **facts: Any) -> HttpResponse:
    context: dict[str, Any] = {
        "section": "graphs",
        "document": text,
        "projects": Project.objects.order_by("pk"),
        "chosen_project": request.POST.get("project", ""),
        "request_key": uuid.uuid4().hex,
        "fresh": request.method != "POST" and bool(text),
        "sent": request.method == "POST",
        **facts,
    }
    return render(request, "dashboard/new_graph.html", context, status=status)


def _submit(request: HttpRequest, text: str) -> Graph | list[Problem]:
    """The graph, or everything that is wrong with its document."""
    assert isinstance(request.user, User)  # noqa: S101 - login_required has seen to it
    chosen = request.POST.get("project", "")
    project = Project.objects.filter(slug=chosen).first() if chosen else default_project()
    if project is None:
        raise Http404
    try:
        asked, unread = read_graph(_read(text))
        key = _key(request, text, project)
        return accept_graph(
            asked, project=project, user=request.user, request_key=key, unread=unread
        )
    except Unreadable as error:
        return [Problem(field="", code="unreadable", message=str(error))]
    except Refused as error:
        return [_named(problem) for problem in error.problems]
    except KeyReused:
        message = (
            "This form was sent before with other contents. Send it again to start a second graph."
        )
        return [Problem(field="", code="key_reused", message=message)]


def _read(text: str) -> Any:
    """The data of the text, JSON or YAML. Raises `Unreadable`."""
    if not text.strip():
        raise Unreadable("There is no document yet: write one, or load the example.")
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise Unreadable(f"The document has more than {MOST_BYTES:,} bytes.")
    try:
        return read_document(text, is_json=False)
    except Unreadable:
        # Not all JSON is YAML, tabs for one; of what is neither, the reader meant is the YAML one.
        if not _is_json(text):
            raise
        return read_document(text, is_json=True)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _named(problem: Problem) -> Problem:
    return Problem(field=document_name(problem.field), code=problem.code, message=problem.message)


def _key(request: HttpRequest, text: str, project: Project) -> RequestKey | None:
    """A second click on the button must not start a second graph."""
    given = request.POST.get("request_key", "")[:64]
    if not given:
        return None
    body = json.dumps([text, project.pk])
    return RequestKey(
        owner=f"user:{request.user.pk}",
        key=given,
        request_digest=hashlib.sha256(body.encode()).hexdigest(),
    )
