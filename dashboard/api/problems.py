"""Errors as problem documents (RFC 9457)."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, JsonResponse
from rest_framework.exceptions import APIException
from rest_framework.request import Request

MEDIA_TYPE = "application/problem+json"
_CODES = {"authentication_failed": "not_authenticated", "not_found": "not_found"}


class Refusal(APIException):
    """An error of ours, with everything that the document says."""

    def __init__(
        self, status: int, code: str, detail: str, errors: Iterable[dict[str, str]] = ()
    ) -> None:
        super().__init__(detail, code)
        self.status_code, self.code, self.errors = status, code, list(errors)


def problem(
    request: HttpRequest | Request,
    status: int,
    *,
    code: str = "",
    title: str = "",
    detail: str = "",
    errors: Iterable[dict[str, str]] = (),
    headers: dict[str, str] | None = None,
) -> JsonResponse:
    """The answer. `type` stays `about:blank`: `code` is what programs read."""
    phrase = HTTPStatus(status).phrase
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": title or phrase,
        "status": status,
        "detail": detail,
        "instance": request.path,
        "code": code or phrase.lower().replace(" ", "_"),
        "errors": list(errors),
        "request_id": request.META.get("REQUEST_ID", ""),
    }
    return JsonResponse(body, status=status, content_type=MEDIA_TYPE, headers=headers)


def handle(error: Exception, context: dict[str, Any]) -> JsonResponse | None:
    """REST framework's exception handler. None: it is a bug, and Django answers 500."""
    request = context["request"]
    if isinstance(error, Http404):
        return problem(
            request, 404, code="not_found", detail="There is nothing under this address."
        )
    if isinstance(error, PermissionDenied):
        return problem(request, 403, code="forbidden", detail="This is not allowed.")
    if not isinstance(error, APIException):
        return None
    headers = {}
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if isinstance(error, Refusal):
        code, errors = error.code, error.errors
    else:
        name = str(error.get_codes())
        code, errors = _CODES.get(name, name), []
    return problem(
        request,
        error.status_code,
        code=code,
        detail=str(error.detail),
        errors=errors,
        headers=headers,
    )


def pointer(field: str) -> str:
    """`spec.checks.0` as a JSON pointer into the body; an empty name is a name too."""
    parts = field.replace("cost_microusd", "cost").split(".") if field else []
    return "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in parts)
