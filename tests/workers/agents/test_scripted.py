"""The agent that follows a script, and complains when the script does not fit."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from loops.core.effects import Message, Reply, ReplyStop, Usage
from loops.core.errors import AgentFault
from loops.core.limits import Amount
from workers.agents.base import AgentRequest, CallCancelled, DeadlinePassed, Prices
from workers.agents.scripted import PROVIDER, Config, Scripted

PRICES = Prices(input_usd_per_mtok=Decimal(3), output_usd_per_mtok=Decimal(15))


def scripted(*steps: dict[str, Any], prices: Prices | None = PRICES) -> Scripted:
    return Scripted(
        config=Config.model_validate({"steps": [{"role": "coder", **step} for step in steps]}),
        prices=prices,
    )


def request(turn: int = 0, role: str = "coder", cwd: Path | None = None) -> AgentRequest:
    message = Message(role="user", content="go")
    return AgentRequest(role=role, messages=(message,), turn=turn, cwd=cwd)


def call(agent: Scripted, asked: AgentRequest, seconds: float = 60.0) -> Reply:
    return agent.call(asked, deadline=time.monotonic() + seconds, cancelled=threading.Event())


def test_the_turn_chooses_the_step_of_the_role_and_nothing_else_does() -> None:
    agent = scripted({"text": "one"}, {"text": "other", "role": "reviewer"}, {"text": "two"})
    for _ in range(2):
        assert call(agent, request(1)).text == "two"
        assert call(agent, request(0)).text == "one"
    assert call(agent, request(0, "reviewer")).text == "other"


def test_usage_and_cost_are_the_script_s_and_the_prices() -> None:
    agent = scripted({"text": "x", "input_tokens": 1_200, "output_tokens": 300})
    assert agent.reserve(request()) == Amount(model_calls=1, tokens=1_500, cost_microusd=8_100)
    reply = call(agent, request())
    assert reply.usage == Usage(input_tokens=1_200, output_tokens=300, cost_microusd=8_100)
    assert reply.stop is ReplyStop.END


def test_without_prices_the_cost_is_unknown() -> None:
    agent = scripted({"input_tokens": 5}, prices=None)
    assert (agent.priced, scripted().priced) == (False, True)
    assert call(agent, request()).usage.cost_microusd is None
    assert agent.reserve(request()) == Amount(model_calls=1, tokens=5)


@pytest.mark.parametrize("stop", ["max_tokens", "refusal"])
def test_a_step_may_be_cut_off_or_declined(stop: str) -> None:
    assert call(scripted({"text": "x", "stop": stop}), request()).stop == stop


@pytest.mark.parametrize(("role", "turn"), [("coder", 1), ("reviewer", 0)])
def test_a_call_that_the_script_does_not_have_is_a_fault(role: str, turn: int) -> None:
    agent = scripted({"text": "only"})
    assert agent.reserve(request(turn, role)) == Amount(model_calls=1)
    with pytest.raises(AgentFault, match=rf"'{role}', and this is call {turn + 1}"):
        call(agent, request(turn, role))


def test_unused_steps_are_named_by_role() -> None:
    agent = scripted({}, {}, {"role": "reviewer"})
    assert agent.unused({"coder": 1}) == [
        "1 of 2 scripted step(s) of role 'coder' are unused",
        "1 of 1 scripted step(s) of role 'reviewer' are unused",
    ]
    assert agent.unused({"coder": 2, "reviewer": 3}) == []


def test_a_step_that_is_to_fail_writes_nothing(tmp_path: Path) -> None:
    agent = scripted({"error": "503 overloaded", "writes": {"a": "x"}})
    with pytest.raises(AgentFault, match="503 overloaded"):
        call(agent, request(cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_delay_ends_at_the_deadline_and_at_once_when_cancelled() -> None:
    agent = scripted({"delay_seconds": 30})
    began = time.monotonic()
    with pytest.raises(DeadlinePassed):
        call(agent, request(), seconds=0.05)
    cancelled = threading.Event()
    threading.Timer(0.05, cancelled.set).start()
    with pytest.raises(CallCancelled):
        agent.call(request(), deadline=began + 60, cancelled=cancelled)
    assert time.monotonic() - began < 10


def test_a_call_past_its_deadline_or_already_cancelled_does_nothing(tmp_path: Path) -> None:
    agent = scripted({"writes": {"a": "x"}})
    with pytest.raises(DeadlinePassed):
        call(agent, request(cwd=tmp_path), seconds=-1)
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(CallCancelled):
        agent.call(request(cwd=tmp_path), deadline=time.monotonic() + 60, cancelled=cancelled)
    assert list(tmp_path.iterdir()) == []


def test_files_are_written_byte_for_byte(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    writes = {"a/b/c.txt": "é\r\n", "./old": "new", ".gitignore": "x\n"}
    call(scripted({"writes": writes}), request(cwd=tmp_path))
    assert (tmp_path / "a/b/c.txt").read_bytes() == "é\r\n".encode()
    assert (tmp_path / "old").read_text() == "new"
    assert (tmp_path / ".gitignore").read_text() == "x\n"


@pytest.mark.parametrize(
    "name",
    [
        "/etc/x",
        "../x",
        "a/../../x",
        "a/..",
        "",
        ".",
        ".git/config",
        "a/.GIT/hooks/x",
        "a\\b",
        "a\0",
    ],
)
def test_a_script_that_writes_outside_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="inside"):
        scripted({"writes": {name: "x"}})


@pytest.mark.parametrize("name", ["link/x", "link", "dangling", "dir/up/x"])
def test_no_write_goes_through_a_symbolic_link(tmp_path: Path, name: str) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    (inside / "dir").mkdir(parents=True)
    (inside / "link").symlink_to(outside)
    (inside / "dangling").symlink_to(outside / "new")
    (inside / "dir/up").symlink_to("../../outside")
    with pytest.raises(AgentFault, match="symbolic link"):
        call(scripted({"writes": {name: "x"}}), request(cwd=inside))
    assert list(outside.iterdir()) == []


def test_what_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    for name in ("dir", "pipe"):
        with pytest.raises(AgentFault, match="no plain file"):
            call(scripted({"writes": {name: "x"}}), request(cwd=tmp_path))
    for name in ("file/below", "n" * 300):
        with pytest.raises(AgentFault, match="cannot be written"):
            call(scripted({"writes": {name: "x"}}), request(cwd=tmp_path))
    with pytest.raises(AgentFault, match="no workspace"):
        call(scripted({"writes": {"a": "x"}}), request())


@pytest.mark.parametrize(
    "step",
    [
        {"txt": "x"},
        {"stop": "done"},
        {"input_tokens": -1},
        {"delay_seconds": float("inf")},
        {"role": ""},
    ],
)
def test_a_script_with_a_slip_is_refused(step: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PROVIDER.open({"steps": [{"role": "coder"} | step]})


def test_it_works_in_a_workspace_and_needs_no_runner() -> None:
    assert PROVIDER.open({"steps": []}).works_in_workspace
    assert replace(request(), run_command=None) == request()
