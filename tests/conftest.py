"""A real Valkey or Redis for each test process, in a data folder of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

collect_ignore = [] if os.environ.get("TEST_REAL_MODEL") else ["engine/test_real_model.py"]
"""Wants a model that is not installed with the others: `make test-model`."""


@pytest.fixture(scope="session", autouse=True)
def valkey() -> Iterator[str]:
    """The address of the server: the embedded one, or that of `REDIS_URL`.

    Several test processes would empty each other's, so each of them starts a Redis then.
    """
    from django.conf import settings

    from dashboard.local.valkey import ValkeyServer
    from tests.servers import redis

    given, several = os.environ.get("REDIS_URL"), "PYTEST_XDIST_WORKER" in os.environ
    with ExitStack() as servers:
        if given and not several:
            url = given
        elif given:
            url = servers.enter_context(redis(settings.DATA_DIR / "redis"))
        else:
            url = servers.enter_context(ValkeyServer(settings.DATA_DIR)).url
        settings.REDIS_URL = url
        yield url
    shutil.rmtree(settings.DATA_DIR, ignore_errors=True)


@pytest.fixture(autouse=True)
def _empty_redis(valkey: str) -> None:
    from loops import feed

    feed.client().flushall()


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "only what touches the database, and no browser: for a second database"
    parser.addoption("--database", action="store_true", help=words)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # What starts real processes takes longest: begun first, it leaves nobody waiting at the end.
    items.sort(key=lambda item: item.get_closest_marker("worker") is None)
    if not config.getoption("--database"):
        return
    others = [item for item in items if not _touches_the_database(item)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in set(others)]


def _touches_the_database(item: pytest.Item) -> bool:
    if item.get_closest_marker("browser") or item.get_closest_marker("once"):
        return False
    fixtures = {"db", "transactional_db", "django_db_setup", "live_server"}
    asks = fixtures & set(getattr(item, "fixturenames", ()))
    return bool(asks or item.get_closest_marker("django_db"))
