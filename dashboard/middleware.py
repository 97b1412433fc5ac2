"""What every answer carries: the content policy and the request's id. Static files go out whole."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable
from typing import Any

from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from whitenoise.middleware import WhiteNoiseMiddleware

from dashboard.views import errors

POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

log = logging.getLogger(__name__)

Handler = Callable[[HttpRequest], HttpResponseBase]


def content_policy(handle: Handler) -> Handler:
    """Nothing inline, nothing from elsewhere."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        response = handle(request)
        response.headers["Content-Security-Policy"] = POLICY
        return response

    return middleware


def request_id(handle: Handler) -> Handler:
    """Keep the caller's id or make one, so that an answer can be found in the logs."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        given = request.headers.get("X-Request-Id", "")
        request.META["REQUEST_ID"] = given if _GIVEN_ID.fullmatch(given) else uuid.uuid4().hex
        response = handle(request)
        response.headers["X-Request-Id"] = request.META["REQUEST_ID"]
        return response

    return middleware


class DatabaseAway:
    """Says in a sentence that the database is full, locked or gone; nothing was stored then."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self._handle(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """503 for an operational error of the database; everything else goes its way."""
        if not isinstance(error, OperationalError):
            return None
        log.error("database: %s", error, exc_info=error)
        return errors.unavailable(request, f"The database cannot be used: {error}.")


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc] # WhiteNoise has no types
    """WhiteNoise without its file stream, which ASGI would have to read in a thread of its own.

    The largest file has 52 kB.
    """

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponse:
        """The file, or 304 when the browser has it."""
        found = static_file.get_response(request.method, request.META)
        body = b""
        if found.file is not None:
            with found.file as file:
                body = file.read()
        response = HttpResponse(body, status=int(found.status), headers=dict(found.headers))
        if body:
            # The size was read at the start; an upgrade in place may have changed the file since.
            response.headers["Content-Length"] = str(len(body))
        if "Content-Type" not in dict(found.headers):
            del response.headers["Content-Type"]
        return response
