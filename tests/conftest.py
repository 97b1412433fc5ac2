"""A real Valkey for the whole session, in a data folder of the session's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def valkey() -> Iterator[str]:
    """The address of the session's server; `REDIS_URL` names another one."""
    from django.conf import settings

    given = os.environ.get("REDIS_URL")
    if given:
        yield given
    else:
        from dashboard.local.valkey import ValkeyServer

        with ValkeyServer(settings.DATA_DIR) as server:
            settings.REDIS_URL = server.url
            yield server.url
    shutil.rmtree(settings.DATA_DIR, ignore_errors=True)


@pytest.fixture(autouse=True)
def _empty_redis(valkey: str) -> None:
    from loops import feed

    feed.client().flushall()
