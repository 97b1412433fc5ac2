"""Registered builders, and the literal example of S1-17 to S1-19."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from loops.core.contract import LoopContract, LoopResult, Outcome, run_loop
from loops.core.effects import Effects
from loops.core.errors import ContractError
from loops.patterns import contract as module
from loops.patterns.base import BuildInfo
from loops.patterns.contract import PATTERN, Spec, builders, register
from loops.patterns.examples import RetryFeatureState, retry_feature
from tests.loops.patterns.fakes import INFO, world

HERE = "tests.loops.patterns.test_contract"


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_builders", dict(module._builders))


def play(spec: Spec, budget: int = 3) -> LoopResult[Any]:
    info = replace(INFO, budget=budget)
    return run_loop(PATTERN.build(spec, PATTERN.initial(spec), world().effects, info))


def facts(result: LoopResult[Any]) -> tuple[str, int, str]:
    return result.outcome.value, result.attempts, repr(result.final_state)


BOTH = "RetryFeatureState(retry_limit=3, validation_added=True)"


def test_s1_17_the_example_succeeds_in_two_attempts() -> None:
    assert facts(play(Spec(builder="retry_feature"))) == ("success", 2, BOTH)


def test_s1_18_a_tighter_bound_exhausts_the_three_attempts() -> None:
    result = play(Spec(builder="retry_feature", arguments='{"accept_up_to": 2}'))
    assert facts(result) == ("budget_exhausted", 3, BOTH)


def test_s1_19_a_budget_of_one_gives_no_second_chance() -> None:
    first = "RetryFeatureState(retry_limit=5, validation_added=False)"
    assert facts(play(Spec(builder="retry_feature"), budget=1)) == ("budget_exhausted", 1, first)


def test_an_unknown_builder_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'nope'; there are retry_feature"):
        Spec(builder="nope")


@pytest.mark.parametrize("arguments", ["", "[]", "1", "{", "{'a': 1}", "[" * 100_000])
def test_arguments_are_one_json_object(arguments: str) -> None:
    with pytest.raises(ValueError, match="JSON"):
        Spec(builder="retry_feature", arguments=arguments)


def test_arguments_that_the_builder_refuses_are_refused_at_submission() -> None:
    spec = Spec(builder="retry_feature", arguments='{"accept_upto": 2}')
    (misfit,) = PATTERN.misfits(spec, iterations=3, roles=(), has_workspace=False)
    assert misfit.field == "spec"
    assert re.match(r".*'retry_feature' refuses its arguments.*upto", misfit.message, re.DOTALL)


def own(arguments: dict[str, Any], info: BuildInfo, effects: Effects) -> LoopContract[Any]:
    made = retry_feature({}, info, effects)
    return replace(made, budget=99, local_aim="another aim")


def hasty(arguments: dict[str, Any], info: BuildInfo, effects: Effects) -> LoopContract[Any]:
    effects.workspace.snapshot()
    return retry_feature(arguments, info, effects)


def stateless(arguments: dict[str, Any], info: BuildInfo, effects: Effects) -> LoopContract[Any]:
    return replace(retry_feature(arguments, info, effects), initial_state={})  # type: ignore[arg-type]


def test_a_registered_builder_cannot_raise_the_budget_or_change_the_aim() -> None:
    register("own", f"{HERE}:own")
    assert builders() == ("own", "retry_feature")
    spec = Spec(builder="own")
    result = play(spec, budget=1)
    assert (result.outcome, result.attempts) == (Outcome.BUDGET_EXHAUSTED, 1)
    assert result.local_aim == INFO.local_aim


@pytest.mark.parametrize(
    ("name", "message"), [("hasty", "'snapshot' while it builds"), ("stateless", "pydantic model")]
)
def test_a_builder_that_breaks_the_rules_is_refused(name: str, message: str) -> None:
    register(name, f"{HERE}:{name}")
    spec = Spec(builder=name)
    (misfit,) = PATTERN.misfits(spec, iterations=3, roles={"anyone"}, has_workspace=False)
    assert message in misfit.message


@pytest.mark.parametrize("target", ["", "module", "module:", ":function"])
def test_a_target_is_module_and_function(target: str) -> None:
    with pytest.raises(ContractError, match="module:function"):
        register("x", target)


def test_a_stored_state_gets_its_builder_s_own_class_back() -> None:
    spec = Spec(builder="retry_feature")
    state = RetryFeatureState(retry_limit=5)
    assert PATTERN.load_state(spec, PATTERN.dump_state(state)) == state
