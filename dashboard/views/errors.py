"""Error pages for people, problem documents for programs."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

from dashboard.api.problems import problem

API = "/api/"
_SENTENCES = {
    400: ("That request cannot be read", "Go back and try again."),
    403: ("That is not allowed", "The page was open too long, or this is not for you. Reload it."),
    404: ("There is nothing here", "The address is wrong, or what it named is gone."),
    503: ("Not possible right now", "Nothing was stored. Try again when it is mended."),
    500: ("Something broke here", "It is not your fault. The log has the details under this id."),
}


# Django passes the exception or the reason, which people need not see.
def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - see above
    """400."""
    return _answer(request, 400)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - see above
    """403."""
    return _answer(request, 403)


def without_token(request: HttpRequest, reason: str = "") -> HttpResponse:  # noqa: ARG001 - see above
    """403 for a form without its CSRF token."""
    return _answer(request, 403)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - see above
    """404."""
    return _answer(request, 404)


def unavailable(request: HttpRequest, why: str) -> HttpResponse:
    """503. Reads nothing from the database, which is what is away."""
    return _answer(request, 503, why)


def broken(request: HttpRequest) -> HttpResponse:
    """500. Reads nothing from the database, which may be what broke."""
    return _answer(request, 500)


def _answer(request: HttpRequest, status: int, why: str = "") -> HttpResponse:
    title, advice = _SENTENCES[status]
    if request.path.startswith(API):
        return problem(request, status, title=title, detail=why or f"{title}.")
    context = {
        "status": status,
        "title": title,
        "advice": f"{why} {advice}".strip(),
        "request_id": request.META.get("REQUEST_ID", ""),
    }
    return HttpResponse(render_to_string("dashboard/error.html", context), status=status)
