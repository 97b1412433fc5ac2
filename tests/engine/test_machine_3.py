"""The state machine of `machine.py`, share 3 of 3."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.machine import run_examples


@pytest.mark.django_db(transaction=True)
def test_nothing_is_lost_overspent_or_done_twice(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    run_examples(3, monkeypatch, settings)
