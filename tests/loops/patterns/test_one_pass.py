"""S1-21, S2-43, S4-23: one call or command and its checks, without a loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loops.core.contract import LoopResult, Outcome, Progress, advance, run_loop
from loops.core.errors import ContractError, EmptyAnswer, Truncated
from loops.patterns.one_pass import PATTERN, Spec, State
from tests.loops.patterns.fakes import INFO, World, refusal, truncated, world

ONCE = replace(INFO, budget=1)


def play(made: World, **spec: Any) -> LoopResult[State]:
    return run_loop(PATTERN.build(Spec(**spec), State(), made.effects, ONCE))


def cause(result: LoopResult[State]) -> str:
    assert result.escalation is not None
    return result.escalation.cause


def test_s1_21_s2_43_an_answer_is_a_success_and_the_result() -> None:
    made = world({"worker": ["42"]})
    result = play(made, prompt="six times seven?")
    assert (result.outcome, result.final_state.answer) == (Outcome.SUCCESS, "42")
    assert made.agents.calls[0].text == "six times seven?"
    kept = PATTERN.result(result.final_state)
    assert kept is not None
    assert (kept.name, kept.content) == ("answer.md", "42")


def test_guidance_of_a_person_reaches_the_agent() -> None:
    made = world({"worker": ["42"]})
    contract = PATTERN.build(Spec(prompt="six times seven?"), State(), made.effects, ONCE)
    advance(contract, Progress(state=State(), feedback="In words."))
    assert made.agents.calls[0].text == "six times seven?\n\nIn words."


def test_s1_21_s2_43_s4_23_a_command_and_its_checks() -> None:
    made = world(exits={"make": [0], "test": [0], "lint": [0]})
    result = play(made, command="make", checks=["test", "lint"])
    assert result.outcome is Outcome.SUCCESS
    assert [command for _, command in made.commands.ran] == ["make", "test", "lint"]
    assert PATTERN.result(result.final_state) is None


def test_an_agent_may_edit_files() -> None:
    made = world({"worker": ["done"]}, {"test": [0]})
    made.agents.on_work = lambda workspace: setattr(workspace, "version", 9)
    play(made, prompt="fix it", edits_files=True, checks=["test"])
    assert made.workspace.version == 9


def test_every_red_check_is_named_and_nothing_runs_twice() -> None:
    made = world({"worker": ["done"]}, {"test": [1], "lint": [None]})
    result = play(made, prompt="fix", checks=["test", "lint"])
    assert (result.outcome, result.attempts) == (Outcome.BUDGET_EXHAUSTED, 1)
    assert result.final_state.red == ("check 1: test exited with 1", "check 2: lint timed out")
    assert result.evaluations[0].reasons == result.final_state.red
    assert len(made.commands.ran) == 2


@pytest.mark.parametrize(("code", "ending"), [(3, "exited with 3"), (None, "timed out")])
def test_a_failed_command_is_red_and_its_checks_do_not_run(code: int | None, ending: str) -> None:
    made = world(exits={"make": [code], "test": [0]})
    result = play(made, command="make", checks=["test"])
    assert result.outcome is Outcome.BUDGET_EXHAUSTED
    assert result.final_state.red == (f"command: make {ending}",)
    assert result.final_state.exit_code == code
    assert len(made.commands.ran) == 1


@pytest.mark.parametrize("missing", ["make", "test"])
def test_a_command_that_is_not_there_goes_to_a_person(missing: str) -> None:
    made = world(exits={"make": [0], "test": [0]} | {missing: [127]})
    assert cause(play(made, command="make", checks=["test"])) == "command_not_found"


def test_a_refusal_goes_to_a_person_and_runs_no_check() -> None:
    made = world({"worker": [refusal()]}, {"test": [0]})
    assert cause(play(made, prompt="x", checks=["test"])) == "refusal"
    assert made.commands.ran == []


@pytest.mark.parametrize(
    ("reply", "error"), [(truncated("half"), Truncated), ("", EmptyAnswer), (" ", EmptyAnswer)]
)
def test_a_fault_is_raised(reply: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        play(world({"worker": [reply]}), prompt="x")


def test_the_budget_is_one() -> None:
    spec = Spec(prompt="x")
    with pytest.raises(ContractError, match="budget is 1, not 2"):
        PATTERN.build(spec, State(), world().effects, replace(INFO, budget=2))
    (misfit,) = PATTERN.misfits(spec, iterations=2, roles={"worker"}, has_workspace=False)
    assert (misfit.field, misfit.message) == (
        "limits.iterations",
        "must be at most 1 for one_pass, not 2",
    )
    assert not PATTERN.misfits(spec, iterations=1, roles={"worker"}, has_workspace=False)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"prompt": " ", "command": "\n"},
        {"prompt": "x", "command": "y"},
        {"command": "y", "edits_files": True},
        {"prompt": "x", "checks": [""]},
    ],
)
def test_a_spec_says_exactly_one_thing_to_do(spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"exactly one|edits_files|empty line"):
        Spec(**spec)


@pytest.mark.parametrize(
    ("spec", "roles", "workspace"),
    [
        ({"prompt": "x"}, {"worker"}, False),
        ({"prompt": "x", "checks": ["c"]}, {"worker"}, True),
        ({"prompt": "x", "edits_files": True}, {"worker"}, True),
        ({"command": "c"}, set(), True),
    ],
)
def test_what_a_spec_needs(spec: dict[str, Any], roles: set[str], workspace: bool) -> None:
    needs = PATTERN.needs(Spec(**spec))
    assert (set(needs.roles), needs.workspace) == (roles, workspace)
