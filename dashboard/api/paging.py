"""Pages by cursor, newest first."""

from __future__ import annotations

from typing import Any, TypeVar
from urllib.parse import urlencode

from django.db.models import Model, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.api.problems import Refusal

M = TypeVar("M", bound=Model)
USUAL, MOST = 50, 100


def whole(request: Request, name: str, default: int, *, most: int = 2**62) -> int:
    """A whole number of the query."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) <= most):
        raise bad_parameter(name, f"must be a whole number up to {most}")
    return int(text)


def bad_parameter(name: str, detail: str) -> Refusal:
    """A query parameter is wrong."""
    error = {"parameter": name, "code": "invalid", "detail": detail}
    return Refusal(400, "invalid", "A query parameter is not as it must be.", [error])


def page(request: Request, rows: QuerySet[M]) -> tuple[list[M], str | None]:
    """One page and the cursor of the next one."""
    limit = max(1, whole(request, "limit", USUAL, most=MOST))
    cursor = whole(request, "cursor", 0)
    found = list((rows.filter(pk__lt=cursor) if cursor else rows).order_by("-pk")[: limit + 1])
    return found[:limit], str(found[limit - 1].pk) if len(found) > limit else None


def answer(request: Request, data: list[dict[str, Any]], cursor: str | None) -> Response:
    """The page as a body, and the next one as a Link."""
    headers = {}
    if cursor:
        kept = [(k, v) for k, vs in request.query_params.lists() if k != "cursor" for v in vs]
        headers["Link"] = f'<{request.path}?{urlencode([*kept, ("cursor", cursor)])}>; rel="next"'
    body = {"data": data, "has_more": cursor is not None, "next_cursor": cursor}
    return Response(body, headers=headers)
