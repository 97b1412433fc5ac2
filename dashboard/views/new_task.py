"""The form for a new task."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import asdict
from typing import Any

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from dashboard.forms import TaskForm
from dashboard.projects import default_project
from loops.models import Project, Task
from loops.patterns import UnknownPattern, all_patterns, get
from loops.patterns.base import Pattern
from loops.store.submit import KeyReused, Refused, RequestKey
from workers.intake import TaskRequest, accept


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def new_task(request: HttpRequest, name: str = "") -> HttpResponse:
    """One form per pattern; a refused one comes back with its problems and all that was typed."""
    pattern = _pattern(name)
    sent = request.method == "POST"
    form = TaskForm(pattern, request.POST if sent else None)
    if sent:
        task = _accept(request, form)
        if task is not None:
            return redirect(f"{reverse('task', args=[task.pk])}?created")
    context: dict[str, Any] = {
        "section": "new",
        "pattern": pattern,
        "patterns": all_patterns(),
        "projects": Project.objects.order_by("pk"),
        "chosen_project": request.POST.get("project", ""),
        "form": form,
        "request_key": uuid.uuid4().hex,
    }
    return render(request, "dashboard/new_task.html", context, status=400 if sent else 200)


def _pattern(name: str) -> Pattern[Any, Any]:
    try:
        return get(name) if name else all_patterns()[0]
    except UnknownPattern as error:
        raise Http404 from error


def _accept(request: HttpRequest, form: TaskForm) -> Task | None:
    """The task, or None with the problems on the form."""
    assert isinstance(request.user, User)  # noqa: S101 - login_required has seen to it
    unread = form.unread()
    asked = form.request()
    chosen = request.POST.get("project", "")
    project = Project.objects.filter(slug=chosen).first() if chosen else default_project()
    try:
        if project is None:
            raise Http404
        key = _key(request, asked, project)
        return accept(asked, project=project, user=request.user, request_key=key, unread=unread)
    except Refused as error:
        form.add_problems(problem for problem in error.problems if problem not in unread)
    except KeyReused:
        message = (
            "This form was sent before with other contents. Send it again to start a second task."
        )
        form.add_error(None, message)
    return None


def _key(request: HttpRequest, asked: TaskRequest, project: Project) -> RequestKey | None:
    """A second click on the button must not start a second task."""
    given = request.POST.get("request_key", "")[:64]
    if not given:
        return None
    body = json.dumps([asdict(asked), project.pk], sort_keys=True)
    return RequestKey(
        owner=f"user:{request.user.pk}",
        key=given,
        request_digest=hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest(),
    )
