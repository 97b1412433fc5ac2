"""Any agent with a command line, driven as a real process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from loops.core.effects import CommandResult, Message, Reply, ReplyStop, Usage
from loops.core.errors import AgentFault, AgentUnusable
from loops.core.limits import Amount
from workers.agents.base import (
    AgentRequest,
    CallCancelled,
    CommandRunner,
    DeadlinePassed,
    Prices,
    Provider,
)
from workers.agents.command import PROVIDER, last_json_object

PRICES = Prices(input_usd_per_mtok=Decimal(3), output_usd_per_mtok=Decimal(15))
ECHO = "import sys; sys.stdout.write(sys.stdin.read())"
REPORT = {
    "type": "result",
    "is_error": False,
    "result": "all done",
    "total_cost_usd": 0.0123456,
    "usage": {
        "input_tokens": 10,
        "cache_creation_input_tokens": 200,
        "cache_read_input_tokens": 3_000,
        "output_tokens": 40,
    },
}


def real_runner(
    argv: Sequence[str], *, cwd: Path | None, timeout: float, stdin: str
) -> CommandResult:
    """Just enough of a runner: no sandbox, one process."""
    try:
        ran = subprocess.run(
            list(argv),
            input=stdin,
            cwd=cwd,
            timeout=timeout,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return CommandResult(exit_code=None, output="", timed_out=True)
    return CommandResult(exit_code=ran.returncode, output=ran.stdout)


@dataclass
class Fixed:
    """A runner with one result."""

    result: CommandResult
    before: Callable[[], None] = lambda: None

    def __call__(self, *_: Any, **__: Any) -> CommandResult:
        self.before()
        return self.result


def python(script: str, prices: Prices | None = None, **config: Any) -> Provider:
    return PROVIDER.open({"argv": [sys.executable, "-c", script], **config}, prices)


def call(
    agent: Provider,
    *messages: Message,
    runner: CommandRunner | None = real_runner,
    seconds: float = 60.0,
    cwd: Path | None = None,
    cancelled: threading.Event | None = None,
    system: str = "",
) -> Reply:
    asked = AgentRequest(
        role="coder",
        messages=messages or (Message(role="user", content="go"),),
        turn=0,
        system=system,
        cwd=cwd,
        run_command=runner,
    )
    deadline = time.monotonic() + seconds
    return agent.call(asked, deadline=deadline, cancelled=cancelled or threading.Event())


def said(output: str, **facts: Any) -> Fixed:
    return Fixed(CommandResult(exit_code=0, output=output, **facts))


def test_the_prompt_goes_in_on_standard_input_and_the_answer_comes_back() -> None:
    reply = call(python(ECHO), Message(role="user", content="héllo $HOME `x`"), system="Be brief.")
    assert reply.text == "Be brief.\n\nhéllo $HOME `x`"
    assert reply.turn is None
    assert reply.model == Path(sys.executable).name


def test_a_conversation_is_one_text_with_its_turns_named() -> None:
    turns = (
        Message(role="user", content="one"),
        Message(role="assistant", content="two"),
        Message(role="user", content="three"),
    )
    assert call(python(ECHO), *turns).text == (
        "## Request\n\none\n\n## Your answer\n\ntwo\n\n## Request\n\nthree"
    )


def test_it_works_in_the_workspace(tmp_path: Path) -> None:
    agent = python("open('made', 'w').write('x')")
    assert agent.works_in_workspace
    call(agent, cwd=tmp_path)
    assert (tmp_path / "made").read_text() == "x"


@pytest.mark.parametrize("dumped", [json.dumps(REPORT), json.dumps(REPORT, indent=2)])
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\nwarning: late line\n"])
def test_usage_and_cost_are_read_from_the_last_json_object(dumped: str, end: str) -> None:
    output = f'{{"result": "an earlier one"}}\nnoise {{"result": "inline"}}\n{dumped}{end}'
    agent = python("", usage_json=True, max_tokens=9_999)
    reply = call(agent, runner=said(output))
    assert reply.text == "all done"
    assert reply.usage == Usage(input_tokens=3_210, output_tokens=40, cost_microusd=12_346)


def test_a_real_process_reports_its_usage() -> None:
    agent = python(
        f"print('working'); print({json.dumps(REPORT)!r})", usage_json=True, max_tokens=9
    )
    assert call(agent).usage.cost_microusd == 12_346


@pytest.mark.parametrize(
    ("change", "usage"),
    [
        ({"total_cost_usd": None}, (3_210, 40, 10_230)),
        ({"total_cost_usd": -1}, (3_210, 40, 10_230)),
        ({"total_cost_usd": True}, (3_210, 40, 10_230)),
        ({"total_cost_usd": "0"}, (3_210, 40, 10_230)),
        ({"total_cost_usd": 1e300}, (3_210, 40, 10_230)),
        ({"total_cost_usd": 0}, (3_210, 40, 0)),
        ({"usage": None}, (9_999, 0, 12_346)),
        ({"usage": {"input_tokens": 5}}, (9_999, 0, 12_346)),
        ({"usage": {"input_tokens": -5, "output_tokens": 1}}, (9_999, 0, 12_346)),
        ({"usage": {"input_tokens": 10**30, "output_tokens": 1}}, (9_999, 0, 12_346)),
        ({"usage": None, "total_cost_usd": None}, (9_999, 0, None)),
    ],
)
def test_unknown_tokens_count_as_the_bound_and_an_unknown_cost_stays_unknown(
    change: dict[str, Any], usage: tuple[int, int, int | None]
) -> None:
    agent = python("", PRICES, usage_json=True, max_tokens=9_999)
    reply = call(agent, runner=said(json.dumps(REPORT | change)))
    found = reply.usage
    assert (found.input_tokens, found.output_tokens, found.cost_microusd) == usage


@pytest.mark.parametrize("cost", ["1e999999999", "1e-999999999", "NaN", "Infinity", "9" * 5_000])
def test_a_hostile_number_costs_no_time(cost: str) -> None:
    began = time.monotonic()
    output = f'{{"result": "x", "total_cost_usd": {cost}}}'
    usage = call(python("", usage_json=True, max_tokens=1), runner=said(output)).usage
    assert usage.cost_microusd in (None, 0, 1)
    assert time.monotonic() - began < 5


def test_without_a_report_the_whole_output_is_the_answer_and_the_bound_is_used() -> None:
    reply = call(python("", usage_json=True, max_tokens=7), runner=said("plain words"))
    assert (reply.text, reply.usage.tokens) == ("plain words", 7)
    assert reply.usage.cost_microusd is None


def test_an_answer_that_was_cut_is_no_whole_answer() -> None:
    assert call(python(""), runner=said("half", output_cut=True)).stop is ReplyStop.MAX_TOKENS
    whole = said(f"[...]\n{json.dumps(REPORT)}", output_cut=True)
    assert call(python("", usage_json=True, max_tokens=1), runner=whole).stop is ReplyStop.END


def test_a_failure_is_a_fault_with_the_end_of_its_output() -> None:
    with pytest.raises(AgentFault, match=r"exited with 3: (.|\n)*no credit"):
        call(python("import sys; print('x\\n' * 999 + 'no credit'); sys.exit(3)"))
    report = json.dumps(REPORT | {"is_error": True, "result": "overloaded"})
    with pytest.raises(AgentFault, match="reports an error: overloaded"):
        call(python("", usage_json=True, max_tokens=1), runner=said(report))


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_failure_that_reports_its_usage_costs_that(exit_code: int) -> None:
    bounded = python("", usage_json=True, max_tokens=1000, max_cost_usd="2")
    report = {"is_error": True, "total_cost_usd": 0, "usage": REPORT["usage"]}
    failed = Fixed(CommandResult(exit_code=exit_code, output=json.dumps(report)))
    with pytest.raises(AgentFault) as caught:
        call(bounded, runner=failed)
    spent = REPORT["usage"]
    assert (caught.value.tokens, caught.value.cost_microusd) == (sum(spent.values()), 0)
    silent = Fixed(CommandResult(exit_code=1, output="no credit"))
    with pytest.raises(AgentFault) as caught:
        call(bounded, runner=silent)
    assert (caught.value.tokens, caught.value.cost_microusd) == (None, None)


@pytest.mark.parametrize("exit_code", [126, 127])
def test_a_program_that_cannot_be_started_is_unusable(exit_code: int) -> None:
    missing = Fixed(CommandResult(exit_code=exit_code, output="no such file"))
    with pytest.raises(AgentUnusable, match="no such file Let argv begin with a program"):
        call(python(""), runner=missing)


def test_the_time_limit_is_what_is_left_until_the_deadline() -> None:
    began = time.monotonic()
    with pytest.raises(DeadlinePassed):
        call(python("import time; time.sleep(30)"), seconds=0.5)
    assert time.monotonic() - began < 20


def test_a_late_or_cancelled_call_starts_nothing() -> None:
    def forbidden() -> None:
        raise AssertionError("started")

    runner = Fixed(CommandResult(exit_code=0, output=""), before=forbidden)
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(DeadlinePassed):
        call(python(""), runner=runner, seconds=-1)
    with pytest.raises(CallCancelled):
        call(python(""), runner=runner, cancelled=cancelled)
    with pytest.raises(AgentFault, match="no way to run"):
        call(python(""), runner=None)


def test_a_command_that_was_ended_by_a_cancel_is_no_failure() -> None:
    cancelled = threading.Event()
    runner = Fixed(CommandResult(exit_code=-9, output=""), before=cancelled.set)
    with pytest.raises(CallCancelled):
        call(python(""), runner=runner, cancelled=cancelled)


@pytest.mark.parametrize(
    ("prices", "config", "priced", "cost"),
    [
        (None, {}, False, 0),
        (None, {"max_cost_usd": "0.50"}, True, 500_000),
        (None, {"max_cost_usd": "0"}, True, 0),
        (PRICES, {"max_tokens": 100}, True, 1_500),
        (PRICES, {"max_tokens": 100, "max_cost_usd": "2"}, True, 2_000_000),
    ],
)
def test_the_reservation_is_the_upper_bound(
    prices: Prices | None, config: dict[str, Any], priced: bool, cost: int
) -> None:
    agent = python("", prices, **config)
    assert agent.priced is priced
    assert agent.reserve(AgentRequest(role="x", messages=(), turn=0)) == Amount(
        model_calls=1, tokens=config.get("max_tokens", 0), cost_microusd=cost
    )


@pytest.mark.parametrize(
    "config",
    [
        {"argv": []},
        {"argv": [" "]},
        {"argv": "claude -p"},
        {"argv": ["x"], "usage_json": True},
        {"argv": ["x"], "max_cost_usd": "-1"},
        {"argv": ["x"], "max_cost_usd": "NaN"},
        {"argv": ["x"], "max_tokens": -1},
    ],
)
def test_settings_with_a_slip_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PROVIDER.open(config)


@given(st.text(alphabet='{}[]":,\n 1aé'))
def test_any_output_can_be_searched(output: str) -> None:
    found = last_json_object(output)
    assert found is None or isinstance(found, dict)


def test_an_object_followed_by_words_on_its_line_is_none() -> None:
    assert last_json_object('{"a": 1}\n{"b": 2} words') == {"a": 1}
    assert last_json_object(" " + json.dumps(REPORT)) is None
    assert last_json_object("[" * 100_000) is None
    assert last_json_object('{"a":' * 100_000) is None
