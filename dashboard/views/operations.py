"""Operations: what is paused or stopped, the workers, and who asked for what."""

from __future__ import annotations

import secrets
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db.models import Count, OuterRef, Subquery
from django.db.models.functions import Coalesce, Now
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from dashboard.context import ALIVE
from dashboard.holding import allow, read_target
from dashboard.views.fragments import live_page
from loops.core.lifecycle import RunStatus
from loops.models import EVERYTHING, SWITCH, Hold, HoldRequest, Project, Run, WorkerPresence
from loops.store.holds import AlreadyEnded, Request, RequestReused
from workers import presence, stopping

MOST_PROJECTS, MOST_REQUESTS, MOST_WHY = 100, 30, 1000


@login_required
@require_safe
def operations(request: HttpRequest) -> HttpResponse:
    """The switch, pauses, workers and the last requests."""
    projects = list(Project.objects.order_by("name")[:MOST_PROJECTS])
    wide = Hold.objects.filter(run__isnull=True)
    held = {one.target: one for one in wide}
    context: dict[str, Any] = {
        "section": "operations",
        "request_id": secrets.token_urlsafe(16),
        "switch": held.get(SWITCH),
        "everything": held.get(EVERYTHING),
        "projects": [(one, key, held.get(key)) for one in projects if (key := f"project:{one.pk}")],
        "paused_runs": Hold.objects.filter(run__isnull=False).select_related("run__task")[
            :MOST_REQUESTS
        ],
        "workers": _workers(),
        "requests": HoldRequest.objects.order_by("-pk")[:MOST_REQUESTS],
        "may_all": request.user.is_superuser,
    }
    return live_page(request, "operations", "parts/operations", context)


@login_required
@require_POST
def hold(request: HttpRequest) -> HttpResponse:
    """Pause, stop or let go on. The form's id makes a second press harmless."""
    target = read_target(request.POST.get("target", ""))
    if target is None:
        raise Http404
    allow(request.user, target)
    asked = Request(
        actor=request.user.get_username(),
        why=request.POST.get("why", "").replace("\0", "").strip()[:MOST_WHY],
        request_id=f"page:{request.POST.get('request_id') or secrets.token_urlsafe(16)}"[:300],
    )
    try:
        if request.POST.get("do") == "lift":
            if not stopping.resume(target, asked, seen=request.POST.get("seen", "")):
                messages.info(request, "Nothing changed: it goes on already, or was paused anew.")
        else:
            stopping.pause(target, asked)
    except (AlreadyEnded, RequestReused) as error:
        messages.error(request, str(error))
    return redirect("task", pk=target.run.task_id) if target.run else redirect("operations")


@login_required
@require_POST
def drain(request: HttpRequest) -> HttpResponse:
    """Let a worker take nothing new, or take attempts again."""
    if not request.user.is_superuser:
        raise PermissionDenied("Only an administrator can drain a worker.")
    change = presence.undrain if request.POST.get("do") == "lift" else presence.drain
    if not change(request.POST.get("worker", "")):
        messages.error(request, "There is no such worker any more.")
    return redirect("operations")


def _workers() -> list[Any]:
    at_work = Run.objects.filter(status=RunStatus.RUNNING, lease_owner=OuterRef("name"))
    counted = at_work.order_by().values("lease_owner").annotate(n=Count("pk")).values("n")
    alive = WorkerPresence.objects.filter(kind="worker", seen_at__gte=Now() - ALIVE)
    return list(alive.annotate(at_work=Coalesce(Subquery(counted), 0)).order_by("name"))
