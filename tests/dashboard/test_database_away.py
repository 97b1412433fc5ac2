"""A database that cannot be written: one sentence, nothing stored, nothing broken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection
from django.test import Client

from loops.models import Task
from tests.dashboard.test_forms import filled

pytestmark = pytest.mark.django_db(transaction=True)

BODY = {
    "pattern": "contract",
    "title": "x" * 200,
    "spec": {"builder": "retry_feature", "arguments": "{" + " " * 9000 + "}"},
    "limits": {"iterations": 3},
}


@pytest.fixture
def full() -> Iterator[None]:
    """No room for another row, whatever the database."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            # Pages that earlier tests freed would be room.
            cursor.execute("VACUUM")
            cursor.execute("PRAGMA page_count")
            cursor.execute(f"PRAGMA max_page_count={cursor.fetchone()[0]}")
            yield
            cursor.execute("PRAGMA max_page_count=1073741823")
        else:
            # PostgreSQL says so by a class of its own: a row is refused as on a full disk.
            cursor.execute(
                "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " RAISE EXCEPTION 'could not extend file: No space left on device'"
                " USING ERRCODE = 'disk_full'; END $$"
            )
            cursor.execute(
                "CREATE TRIGGER full_disk BEFORE INSERT ON loops_task"
                " FOR EACH ROW EXECUTE FUNCTION full_disk()"
            )
            yield
            cursor.execute("DROP FUNCTION full_disk CASCADE")


def test_the_api_answers_with_a_problem_and_stores_nothing(
    full: None, bearer: dict[str, str]
) -> None:
    answer = Client().post("/api/v1/tasks", BODY, content_type="application/json", **bearer)
    assert answer.status_code == 503
    assert answer["Content-Type"] == "application/problem+json"
    assert "The database cannot be used:" in answer.json()["detail"]
    assert not Task.objects.exists()


def test_the_page_says_it_too(full: None, pages: Client) -> None:
    form = filled("contract", **{"title": "x" * 200, "spec.arguments": "{" + " " * 9000 + "}"})
    answer = pages.post("/tasks/new/contract/", form)
    assert answer.status_code == 503
    assert "The database cannot be used:" in answer.content.decode()
    assert not Task.objects.exists()
