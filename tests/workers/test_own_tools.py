"""Tools of the operator's own: declared, loaded at the start, bounded (S2-24)."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loops.core.errors import ContractError
from loops.core.plan import Risk
from loops.core.tooling import ToolStatus
from tests.engine.bank import Payment, Stall
from workers.filetools import ToolError
from workers.tools import registry
from workers.tools.apart import Use, run_apart
from workers.tools.base import ToolContext
from workers.tools.bounded import Said, bounded
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


def apart(
    folder: Path, how: str, *, seconds: float = 60, held: Any = None, traces: bool = True
) -> Said:
    """The tool that fails to end, in its own process."""
    held = held or lease()
    context = ToolContext(
        folder=folder, idempotency_key="k1", seconds=seconds, cancelled=threading.Event()
    )
    given = Stall(folder=str(folder), how=how)
    use = Use(target="tests.engine.bank:stall", context=context, arguments=given)
    return run_apart(use, held, traces=traces)


def alive(folder: Path) -> list[int]:
    """Which of the processes that the tool wrote down still live."""
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def stopped_once_begun(folder: Path, how: str, *, traces: bool = True) -> Said:
    """The tool, whose run is stopped as soon as it has begun."""
    held = lease(60)

    def stop() -> None:
        while not (folder / "begun").exists():
            time.sleep(0.02)
        held.lost.set()

    stopper = threading.Thread(target=stop)
    stopper.start()
    said = apart(folder, how, held=held, traces=traces)
    stopper.join()
    return said


@pytest.mark.parametrize(
    ("traces", "status"),
    [(True, ToolStatus.OUTCOME_UNKNOWN), (False, ToolStatus.FAILED)],
)
def test_s2_26_an_own_tool_that_hangs_is_ended_with_all_that_it_started(
    traces: bool, status: ToolStatus, tmp_path: Path
) -> None:
    before = threading.active_count()
    said = stopped_once_begun(tmp_path, "hangs", traces=traces)
    assert (said.status, said.error_code) == (status, "timeout")
    assert alive(tmp_path) == []
    assert threading.active_count() <= before


def test_s2_26_an_own_tool_has_no_more_than_its_time(tmp_path: Path) -> None:
    said = apart(tmp_path, "hangs", seconds=0.2)
    assert (said.status, said.error_code) == (ToolStatus.OUTCOME_UNKNOWN, "timeout")


def test_s2_24_the_abort_signal_reaches_an_own_tool_in_its_process(tmp_path: Path) -> None:
    said = stopped_once_begun(tmp_path, "heeds")
    assert (said.status, said.text) == (ToolStatus.COMPLETED, "I was told to end.")
    assert alive(tmp_path) == []


@pytest.mark.parametrize(
    ("how", "status", "text"),
    [
        ("ends", ToolStatus.COMPLETED, "ends for k1 in {folder}"),
        ("leaves", ToolStatus.COMPLETED, "leaves for k1 in {folder}"),
        ("dies", ToolStatus.OUTCOME_UNKNOWN, "Its process ended with 139 and without an answer."),
    ],
)
def test_s2_26_however_an_own_tool_ends_nothing_of_it_is_left(
    how: str, status: ToolStatus, text: str, tmp_path: Path
) -> None:
    said = apart(tmp_path, how)
    assert (said.status, said.text) == (status, text.format(folder=tmp_path))
    assert alive(tmp_path) == []


def test_s2_26_an_own_tool_that_cannot_be_loaded_has_surely_done_nothing(tmp_path: Path) -> None:
    context = ToolContext(
        folder=tmp_path, idempotency_key="k1", seconds=60, cancelled=threading.Event()
    )
    gone = Use(
        target="tests.engine.bank:gone", context=context, arguments=Payment(book="b", amount=1)
    )
    said = run_apart(gone, lease(), traces=True)
    assert (said.status, said.error_code) == (ToolStatus.FAILED, "tool_error")
    assert "cannot be loaded: AttributeError" in said.text


def test_the_workspace_is_no_place_to_import_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('hostile')")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.chdir(tmp_path)
    assert apart(tmp_path, "ends").status is ToolStatus.COMPLETED
