"""A worker is seen whatever it has to say."""

from __future__ import annotations

import pytest

from loops.models import WorkerPresence
from workers import presence

pytestmark = pytest.mark.django_db


def test_a_worker_is_seen_however_long_the_reason_against_its_sandbox_is() -> None:
    label = "no sandbox: " + "bwrap: " * 60
    presence.announce("worker", label)
    assert WorkerPresence.objects.get().sandbox == label
