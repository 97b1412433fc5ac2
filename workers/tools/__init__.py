"""The registry of tools: those of the workspace, reading over HTTP, and the operator's own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from django.conf import settings

from workers.tools.base import Tool
from workers.tools.files import workspace_tools
from workers.tools.own import load_own
from workers.tools.web import HTTP_GET


@cache
def _fixed() -> Mapping[str, Tool]:
    return {tool.name: tool for tool in (*workspace_tools(), HTTP_GET)}


def registry() -> Mapping[str, Tool]:
    """Every tool there is, by name. The operator's own cannot take the place of another."""
    own = {tool.name: tool for tool in load_own(tuple(settings.LOOPWARDEN_TOOLS))}
    return {**own, **_fixed()}
