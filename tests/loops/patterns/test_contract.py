"""Registered builders, and the literal example of S1-17 to S1-19."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from loops.core.contract import (
    ActionDecision,
    Evaluation,
    Finish,
    Judgment,
    LoopContract,
    LoopResult,
    NotYet,
    Outcome,
    Progress,
    advance,
    run_loop,
)
from loops.core.effects import Effects
from loops.core.errors import ContractError
from loops.core.progress import Mark
from loops.patterns import contract as module
from loops.patterns.base import BuildInfo, SpecFault, StateModel, accepted
from loops.patterns.contract import PATTERN, Spec, builders, register
from loops.patterns.examples import RetryFeatureState, retry_feature
from loops.patterns.traced import KEY, Traced
from tests.loops.patterns.fakes import INFO, world

HERE = "tests.loops.patterns.test_contract"


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_builders", dict(module._builders))


def play(spec: Spec, budget: int = 3) -> LoopResult[Any]:
    info = replace(INFO, budget=budget)
    return run_loop(PATTERN.build(spec, PATTERN.initial(spec), world().effects, info))


def facts(result: LoopResult[Any]) -> tuple[str, int, str]:
    return result.outcome.value, result.attempts, repr(result.final_state.state)


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


@pytest.mark.parametrize(
    "arguments",
    ["", "[]", "1", "{", "{'a': 1}", "[" * 100_000, '{"accept_up_to": NaN}', '{"a": 1, "a": 2}'],
)
def test_arguments_are_one_strict_json_object(arguments: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|stands twice"):
        Spec(builder="retry_feature", arguments=arguments)


def test_arguments_that_the_builder_refuses_are_refused_at_submission() -> None:
    spec = Spec(builder="retry_feature", arguments='{"accept_upto": 2, "accept_up_to": "many"}')
    found = PATTERN.misfits(spec, iterations=3, roles=(), has_workspace=False)
    assert [(misfit.field, misfit.message) for misfit in found] == [
        (
            "spec.arguments",
            "accept_up_to: Input should be a valid integer, unable to parse string as an integer",
        ),
        ("spec.arguments", "accept_upto: there is no such argument"),
    ]


def own(arguments: dict[str, Any], info: BuildInfo, effects: Effects) -> LoopContract[Any]:
    made = retry_feature({}, info, effects)
    return replace(made, budget=99, local_aim="another aim")


def hasty(arguments: dict[str, Any], info: BuildInfo, effects: Effects) -> LoopContract[Any]:
    effects.workspace.snapshot()
    return retry_feature(arguments, info, effects)


def stateless(arguments: dict[str, Any], info: BuildInfo, effects: Effects) -> LoopContract[Any]:
    return replace(retry_feature(arguments, info, effects), initial_state={})  # type: ignore[arg-type]


class Greedy(StateModel):
    """A state that wants the place of the trail."""

    loopwarden: str = ""


def greedy(arguments: dict[str, Any], info: BuildInfo, effects: Effects) -> LoopContract[Any]:
    return replace(retry_feature(arguments, info, effects), initial_state=Greedy())  # type: ignore[arg-type]


def broken(arguments: dict[str, Any], info: BuildInfo, effects: Effects) -> LoopContract[Any]:
    raise KeyError("bound")


def leaving(arguments: dict[str, Any], info: BuildInfo, effects: Effects) -> LoopContract[Any]:
    raise SystemExit(3)


def absent(arguments: dict[str, Any], info: BuildInfo, effects: Effects) -> None:
    return None


def test_a_registered_builder_cannot_raise_the_budget_or_change_the_aim() -> None:
    register("own", f"{HERE}:own")
    assert builders() == ("own", "retry_feature")
    spec = Spec(builder="own")
    result = play(spec, budget=1)
    assert (result.outcome, result.attempts) == (Outcome.BUDGET_EXHAUSTED, 1)
    assert result.local_aim == INFO.local_aim


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hasty", "'snapshot' while it builds"),
        ("stateless", "pydantic model"),
        ("greedy", f"called '{KEY}': rename it"),
        ("broken", "'broken' failed and built nothing (KeyError: 'bound')"),
        ("leaving", "'leaving' failed and built nothing (SystemExit: 3)"),
        ("absent", "'absent' must return a LoopContract, it returned NoneType"),
        ("nowhere", "'nowhere' failed and built nothing (AttributeError: "),
    ],
)
def test_a_builder_that_breaks_the_rules_is_refused(name: str, message: str) -> None:
    register(name, f"{HERE}:{name}")
    spec = Spec(builder=name)
    (misfit,) = PATTERN.misfits(spec, iterations=3, roles={"anyone"}, has_workspace=False)
    assert message in misfit.message
    assert misfit.field == "spec.builder"
    with pytest.raises(SpecFault, match=r"^spec\.builder: "):
        PATTERN.initial(spec)


@pytest.mark.parametrize("target", ["", "module", "module:", ":function"])
def test_a_target_is_module_and_function(target: str) -> None:
    with pytest.raises(ContractError, match="module:function"):
        register("x", target)


def test_a_stored_state_gets_its_builder_s_own_class_back() -> None:
    spec = Spec(builder="retry_feature")
    state = Traced(state=RetryFeatureState(retry_limit=5), trail=(Mark(after="a"),), attempt=1)
    assert PATTERN.load_state(spec, PATTERN.dump_state(state)) == state


class Dial(StateModel):
    """A state whose course a test sets."""

    at: str = ""
    waited: int = 0


def dial(arguments: dict[str, Any], info: BuildInfo, effects: Effects) -> LoopContract[Any]:
    """Each attempt turns to the next position; `~~A` is not ready twice before it is A."""

    def turn(context: Any) -> ActionDecision[Dial]:
        to = arguments["course"][context.attempt - 1]
        waits, at = to.count("~"), to.lstrip("~")
        if context.state.waited < waits:
            waited = context.state.model_copy(update={"waited": context.state.waited + 1})
            later = NotYet(seconds=1, reason="Not ready yet.")
            return ActionDecision(action="turn", state=waited, not_yet=later)
        return ActionDecision(action="turn", state=Dial(at=at))

    def judge(state: Dial) -> Evaluation:
        if state.at == "!":
            return Evaluation(judgment=Judgment.SUCCESS)
        return Evaluation(judgment=Judgment.CONTINUE, feedback=arguments.get("says", state.at))

    return LoopContract(
        local_aim=info.local_aim,
        initial_state=Dial(),
        action_policy=turn,
        evaluator=judge,
        budget=info.budget,
        stopping_condition=accepted,
        authority_scope=info.scope(frozenset({"turn"})),
    )


def turned(
    course: list[str], budget: int = 9, says: str | None = None, decided: int = 0, **limits: int
) -> tuple[str, int]:
    """How a run with this course ends, its state stored between attempts as a worker does it.

    `decided`: the attempt after which a person let it go on.
    """
    register("dial", f"{HERE}:dial")
    arguments = {"course": course} | ({} if says is None else {"says": says})
    spec = Spec.model_validate({"builder": "dial", "arguments": json.dumps(arguments)} | limits)
    progress = Progress(state=PATTERN.initial(spec))
    while True:
        stored = json.loads(json.dumps(PATTERN.dump_state(progress.state)))
        state = PATTERN.load_state(spec, stored)
        word = "continue" if decided and progress.attempts == decided else ""
        info = replace(INFO, budget=budget, decided=word)
        contract = PATTERN.build(spec, state, world().effects, info)
        step = advance(contract, replace(progress, state=state))
        if isinstance(step, Finish):
            result = step.result
            return result.escalation.cause if result.escalation else "accepted", result.attempts
        progress = step.progress


@pytest.mark.parametrize(
    ("course", "facts", "end"),
    [
        pytest.param("ABCDE", {"says": "Say why."}, ("repeated_finding", 3), id="same-finding"),
        pytest.param("ABCD!", {"says": "- a\n- b", "same_finding_limit": 0}, ("accepted", 5)),
        pytest.param("ABCD!", {"says": ""}, ("accepted", 5), id="an-evaluator-without-words"),
        pytest.param("AAAA", {"says": ""}, ("no_progress", 3), id="RC051-same-action-and-result"),
        pytest.param("AAAAA", {"says": "", "same_action_limit": 0}, ("spend_without_change", 4)),
        pytest.param("AAAAA", {"says": "", "idle_limit": 2}, ("no_progress", 3)),
        pytest.param("ABABAB", {}, ("back_and_forth", 4), id="back-and-forth"),
        pytest.param("ABABAB!", {"return_limit": 0}, ("accepted", 7), id="a-cycle-by-design"),
        pytest.param("AAAA", {"says": "", "budget": 3}, ("iterations", 3), id="the-cap-is-told"),
        pytest.param("AAAA!", {"says": "", "decided": 2}, ("accepted", 5), id="a-person-let-it"),
    ],
)
def test_a_contract_of_ones_own_is_stopped_when_it_stands_still(
    course: str, facts: dict[str, Any], end: tuple[str, int]
) -> None:
    assert turned(list(course), **facts) == end


def test_rc053_a_wait_of_a_contract_is_no_standstill() -> None:
    assert turned(["A", "~" * 12 + "B", "!"], same_action_limit=2, idle_limit=2) == ("accepted", 3)
    assert turned(["A", "~A", "~~~A", "A"], says="") == ("no_progress", 3)


def test_a_state_of_an_earlier_version_begins_a_trail() -> None:
    spec = Spec(builder="retry_feature")
    old = RetryFeatureState(retry_limit=5)
    assert PATTERN.load_state(spec, old.model_dump(mode="json")) == Traced(state=old)
