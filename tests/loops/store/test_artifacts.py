"""Artifacts are whole or not there, whatever happens to the disk."""

from __future__ import annotations

import resource
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.conf import settings

from loops.models import Artifact
from loops.store import artifacts

pytestmark = pytest.mark.django_db


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """Every file that this process writes ends at so many bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 100])
def test_what_a_full_disk_cut_off_is_written_again_in_full(room: int) -> None:
    data = secrets.token_bytes(5_000)
    # Only the file must fail, not the database: SQLite would have no room either.
    with pytest.raises(OSError, match="File too large"), full_after(room):
        artifacts.put(data)
    assert not Artifact.objects.exists()

    digest = artifacts.put(data)

    assert artifacts.get(digest) == data


def test_a_failed_write_leaves_nothing_behind() -> None:
    before = set(Path(settings.MEDIA_ROOT).rglob("*.part"))
    with pytest.raises(OSError, match="File too large"), full_after(100):
        artifacts.put(secrets.token_bytes(5_000))

    assert set(Path(settings.MEDIA_ROOT).rglob("*.part")) == before


def test_the_same_bytes_put_twice_are_one_file() -> None:
    data = secrets.token_bytes(50)

    assert artifacts.put(data) == artifacts.put(data)

    path = Path(settings.MEDIA_ROOT) / Artifact.objects.get().path
    assert [path] == [*path.parent.glob(f"{path.name}*")]
