"""Tools of the operator's own: declared, loaded at the start, bounded (S2-24)."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from loops.core.errors import ContractError
from loops.core.plan import Risk
from loops.core.tooling import ToolStatus
from workers.filetools import ToolError
from workers.tools import registry
from workers.tools.bounded import bounded
from workers.tools.own import load_own


def test_s2_24_a_tool_brings_its_arguments_its_risk_and_its_words(settings: Any) -> None:
    settings.LOOPWARDEN_TOOLS = ["pay:high_impact=tests.engine.bank:pay"]
    pay = registry()["pay"]
    assert (pay.risk, pay.about, pay.leaves_traces) == (Risk.HIGH_IMPACT, "Pay an amount.", True)
    assert set(pay.info.schema["properties"]) == {"book", "amount"}


def test_s2_24_none_can_take_the_place_of_a_tool_of_ours(settings: Any) -> None:
    settings.LOOPWARDEN_TOOLS = ["read_file:read=tests.engine.bank:pay"]
    assert registry()["read_file"].about != "Pay an amount."


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("pay=tests.engine.bank:pay", "must declare its risk"),
        ("pay:harmless=tests.engine.bank:pay", "must declare its risk"),
        ("pay:read=tests.engine.bank", "name:risk=module:function"),
        ("a b:read=tests.engine.bank:pay", "name:risk=module:function"),
        ("pay:read=tests.engine.bank:steal", "cannot be loaded"),
        ("pay:read=no.such.module:pay", "cannot be loaded"),
        ("pay:read=tests.engine.bank:Payment", "must be a function"),
    ],
)
def test_s2_24_a_tool_that_is_not_declared_well_stops_the_start(entry: str, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        load_own((entry,))


def lease(seconds: float = 5) -> Any:
    return SimpleNamespace(seconds_left=seconds, lost=threading.Event())


def fail(error: Exception) -> str:
    raise error


@pytest.mark.parametrize(
    ("error", "traces", "status"),
    [
        (ToolError("no"), True, ToolStatus.FAILED),
        (TimeoutError("late"), True, ToolStatus.OUTCOME_UNKNOWN),
        (ConnectionResetError(), True, ToolStatus.OUTCOME_UNKNOWN),
        (TimeoutError("late"), False, ToolStatus.FAILED),
    ],
)
def test_s2_26_only_a_tool_error_says_that_nothing_happened(
    error: Exception, traces: bool, status: ToolStatus
) -> None:
    assert bounded(partial(fail, error), lease(), traces=traces).status is status


@pytest.mark.parametrize(
    ("traces", "status"),
    [(True, ToolStatus.OUTCOME_UNKNOWN), (False, ToolStatus.FAILED)],
)
def test_s2_26_a_tool_that_does_not_end_is_not_waited_for(traces: bool, status: ToolStatus) -> None:
    release = threading.Event()
    began = time.monotonic()
    said = bounded(lambda: str(release.wait(30)), lease(0.2), traces=traces)
    release.set()
    assert (said.status, said.error_code) == (status, "timeout")
    assert time.monotonic() - began < 10


def test_s2_24_a_stopped_run_reaches_the_tool_and_is_not_held_up() -> None:
    held = lease(60)
    release = threading.Event()
    threading.Timer(0.1, held.lost.set).start()
    said = bounded(lambda: str(release.wait(30)), held, traces=True)
    release.set()
    assert said.error_code == "timeout"
