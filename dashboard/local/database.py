"""Brings the database up to date before the first child starts."""

from __future__ import annotations

from django.core.management import call_command
from django.db import OperationalError, connection, connections

from dashboard.local.errors import CannotStart


def prepare_database() -> None:
    """Migrate; on SQLite, switch the file to WAL. Raises `CannotStart`."""
    try:
        if connection.vendor == "sqlite":
            _use_wal()
        call_command("migrate", interactive=False, verbosity=0)
    except OperationalError as error:
        raise CannotStart(f"DATABASE_URL: cannot use the database: {error}") from error
    finally:
        connections.close_all()


def _use_wal() -> None:
    # The mode is kept in the file. Asking for it on every connection would take a lock each time.
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode=WAL")
        mode = cursor.fetchone()[0]
    if mode not in ("wal", "memory"):
        raise CannotStart(
            f"SQLite cannot use WAL here (it stays in mode {mode}): a network file system?"
            " Set LOOPWARDEN_DATA to a folder on a local disk, or DATABASE_URL to PostgreSQL."
        )
