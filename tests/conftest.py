"""A real Valkey for the whole session, and a data folder of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_FOLDER = tempfile.mkdtemp(prefix="lw-test-")
os.environ["LOOPWARDEN_DATA"] = _FOLDER
os.environ["LOOPWARDEN_REPO_ROOTS"] = "/"


@pytest.fixture(scope="session", autouse=True)
def valkey() -> Iterator[str]:
    """The address of the session's server; `REDIS_URL` names another one."""
    from django.conf import settings

    given = os.environ.get("REDIS_URL")
    if given:
        yield given
        return
    from dashboard.local.valkey import ValkeyServer

    with ValkeyServer(Path(_FOLDER)) as server:
        settings.REDIS_URL = server.url
        yield server.url


@pytest.fixture(autouse=True)
def _empty_redis(valkey: str) -> None:
    from loops import feed

    feed.client().flushall()
