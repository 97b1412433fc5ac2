"""One template, two uses: whole for a first look, only its live part for a refresh."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers


def is_refresh(request: HttpRequest) -> bool:
    """Whether htmx asks for the live part only."""
    return request.headers.get("HX-Request") == "true"


def live_page(
    request: HttpRequest, page: str, part: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    """The page, or only its live part."""
    name = part if is_refresh(request) else page
    response = render(request, f"dashboard/{name}.html", context, status=status)
    patch_vary_headers(response, ["HX-Request"])
    response.headers["Cache-Control"] = "no-store"
    return response
