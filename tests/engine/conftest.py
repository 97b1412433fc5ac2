"""What tests with processes of their own share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tests.engine.counting import models
from tests.engine.disturbed import start_server
from tests.messages_server import MessagesServer


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """Output of the processes, printed when the test fails."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode=WAL")
    path = tmp_path / "processes.log"
    path.touch()
    yield path
    print(path.read_text()[-8000:])


@pytest.fixture(scope="module")
def forks(django_db_setup: None, django_db_blocker: Any) -> None:
    """The process that others are forked from, one in each test process."""
    with django_db_blocker.unblock():
        start_server()


@pytest.fixture
def provider() -> Iterator[MessagesServer]:
    """The models of a counting run, with books of their own."""
    with models() as server:
        yield server
