"""Tasks and runs over HTTP."""

from __future__ import annotations

import hashlib
import json
import re
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.urls import reverse
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard.api.bodies import INVALID, TaskBody, errors_of, read_most
from dashboard.api.paging import answer, bad_parameter, page, whole
from dashboard.api.problems import Refusal
from dashboard.api.shapes import event_shape, run_head, run_shape, task_shape
from dashboard.queues import OF_STATUS, current_runs, search
from dashboard.timeline import timeline
from loops import gates
from loops.core.lifecycle import RunStatus
from loops.models import ApiToken, Run
from loops.patterns import NAMES
from loops.store import days, holds
from loops.store.submit import KeyReused, Refused, RequestKey
from workers.intake import accept, notes_of

_REFUSED = "The task cannot be taken as it is."
MOST_ATTEMPTS, MOST_EVENTS = 200, 500
_KEY = re.compile(r"[Tt]-([0-9]{1,18})|([0-9]{1,18})")


def token_of(request: Request) -> ApiToken:
    """The token of a request that has passed the permission check."""
    assert isinstance(request.auth, ApiToken)  # noqa: S101 - the permission check has seen to it
    return request.auth


def runs_of(request: Request) -> QuerySet[Run]:
    """The runs that the token may see: its own project's."""
    mine = Run.objects.filter(task__project=token_of(request).project_id)
    return days.marked(mine).select_related("task__project")


def run_or_404(request: Request, pk: int) -> Run:
    """One of them."""
    run = runs_of(request).filter(pk=pk).first()
    if run is None:
        raise Http404
    return run


class Tasks(APIView):
    """List and submit."""

    def get(self, request: Request) -> Response:
        """Newest first; `status`, `pattern` (both repeatable) and `q` narrow it down."""
        rows = current_runs().filter(task__project=token_of(request).project_id)
        rows = rows.filter(search(request.query_params.get("q", "")))
        if statuses := _known(request, "status", [status.value for status in RunStatus]):
            rows = rows.filter(reduce(or_, (OF_STATUS[RunStatus(one)] for one in statuses)))
        if patterns := _known(request, "pattern", list(NAMES)):
            rows = rows.filter(task__pattern__in=patterns)
        rows = rows.select_related("task__project").defer("state", "feedback", "result")
        found, cursor = page(request, rows)
        held = holds.of_runs(found)
        shown = [task_shape(run.task, run, held.get(run.pk, [])) for run in found]
        return answer(request, shown, cursor)

    def post(self, request: Request) -> Response:
        """Submit a task: 202, it runs on its own from here."""
        token = token_of(request)
        body, unread = read_most(TaskBody, request.data)
        try:
            task = accept(
                body.as_request(),
                project=token.project,
                user=token.user,
                request_key=request_key(request, token),
                unread=unread,
            )
        except Refused as error:
            code, detail = ("invalid", INVALID) if unread else ("refused", _REFUSED)
            raise Refusal(400, code, detail, errors_of(error.problems, body_name)) from error
        except KeyReused as error:
            raise Refusal(422, "idempotency_key_reused", str(error)) from error
        run = runs_of(request).filter(task=task).order_by("-number")[0]
        location = reverse("api-task", args=[str(task.pk)])
        shape = {**task_shape(run.task, run), "notes": notes_of(task)}
        return Response(shape, status=202, headers={"Location": location})


class OneTask(APIView):
    """One task with the head of its newest run."""

    def get(self, request: Request, key: str) -> Response:
        """By number or by key: 12 or T-12."""
        match = _KEY.fullmatch(key)
        if match is None:
            raise Http404
        number = int(match[1] or match[2])
        run = runs_of(request).filter(task_id=number).order_by("-number").first()
        if run is None:
            raise Http404
        return Response(task_shape(run.task, run))


class OneRun(APIView):
    """One run with its attempts and steps."""

    def get(self, request: Request, pk: int) -> Response:
        """The figures of its page."""
        run = run_or_404(request, pk)
        lines, earlier = timeline(run, most=MOST_ATTEMPTS)
        return Response(run_shape(run, lines, earlier=earlier))


class RunEvents(APIView):
    """A run's history, oldest first."""

    def get(self, request: Request, pk: int) -> Response:
        """What came after `after`. Ask again with `next_after` for what comes next."""
        run = run_or_404(request, pk)
        after = whole(request, "after", 0)
        limit = max(1, whole(request, "limit", 100, most=MOST_EVENTS))
        found = list(run.events.filter(seq__gt=after).order_by("seq")[: limit + 1])
        more, found = len(found) > limit, found[:limit]
        return Response(
            {
                "data": [event_shape(event) for event in found],
                "has_more": more,
                "next_after": found[-1].seq if found else after,
            }
        )


class CancelRun(APIView):
    """Stop a run."""

    def post(self, request: Request, pk: int) -> Response:
        """202 with the run; cancelling twice changes nothing."""
        run = run_or_404(request, pk)
        gates.cancel(run, actor=token_of(request).user.get_username())
        return Response(run_head(run_or_404(request, pk)), status=202)


def _known(request: Request, name: str, known: list[str]) -> list[str]:
    asked = request.query_params.getlist(name)
    for value in asked:
        if value not in known:
            raise bad_parameter(
                name, f"there is no {name} {value!r}; there are: {', '.join(known)}"
            )
    return asked


def body_name(field: str) -> str:
    return "aim" if field == "local_aim" else field


def key_of(request: Request) -> str | None:
    """The Idempotency-Key, or None."""
    key = request.headers.get("Idempotency-Key")
    if key is not None and not (1 <= len(key) <= 255 and key.isprintable()):
        detail = "Idempotency-Key must have 1 to 255 printable characters."
        raise Refusal(400, "bad_idempotency_key", detail)
    return key


def request_key(request: Request, token: ApiToken, body: Any = None) -> RequestKey | None:
    """The request's key, if it has one; `body` is what counts as the same request."""
    key = key_of(request)
    if key is None:
        return None
    text = json.dumps(request.data if body is None else body, sort_keys=True)
    return RequestKey(
        owner=f"token:{token.pk}", key=key, request_digest=hashlib.sha256(text.encode()).hexdigest()
    )
