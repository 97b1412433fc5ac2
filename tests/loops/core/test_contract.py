"""The rule of every loop: S1-2 to S1-20 and the source's extras X1 to X5."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from functools import partial
from inspect import signature

import pytest

from loops.core.contract import (
    BUDGET_REASON,
    ActionDecision,
    AuthorityScope,
    Continue,
    Escalation,
    Evaluation,
    Finish,
    Judgment,
    LoopContext,
    LoopContract,
    LoopResult,
    Outcome,
    Progress,
    advance,
    run_loop,
    start,
)
from loops.core.effects import Effects, Message
from loops.core.errors import ContractError
from loops.core.limits import Limits
from tests.loops.patterns.fakes import world

SCOPE = AuthorityScope(allowed_actions=frozenset({"add"}))
Policy = Callable[[LoopContext[int]], ActionDecision[int]]


def add_one(context: LoopContext[int]) -> ActionDecision[int]:
    return ActionDecision(action="add", state=context.state + 1)


def reach(goal: int) -> Callable[[int], Evaluation]:
    def evaluate(state: int) -> Evaluation:
        judgment = Judgment.SUCCESS if state >= goal else Judgment.CONTINUE
        return Evaluation(judgment=judgment, feedback=f"at {state}")

    return evaluate


def accepted(evaluation: Evaluation) -> bool:
    return evaluation.judgment is Judgment.SUCCESS


BASE = LoopContract(
    local_aim="reach two",
    initial_state=0,
    action_policy=add_one,
    evaluator=reach(2),
    budget=3,
    stopping_condition=accepted,
    authority_scope=SCOPE,
)


def deciding(**facts: object) -> LoopContract[int]:
    return replace(BASE, action_policy=lambda _: ActionDecision(action="add", **facts))  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [0, -1])
def test_s1_03_a_budget_below_one_is_refused(budget: int) -> None:
    with pytest.raises(ContractError, match="at least 1"):
        replace(BASE, budget=budget)


@pytest.mark.parametrize("missing", ["budget", "stopping_condition", "evaluator"])
def test_s0_02_neither_the_cap_nor_the_way_out_may_be_left_out(missing: str) -> None:
    facts = {field.name: getattr(BASE, field.name) for field in fields(LoopContract)}
    LoopContract(**facts)
    del facts[missing]
    with pytest.raises(TypeError, match=missing):
        LoopContract(**facts)
    with pytest.raises(TypeError, match="iterations"):
        Limits(model_calls=1)  # type: ignore[call-arg]


def test_s1_04_the_contract_has_seven_fields_and_is_immutable() -> None:
    assert [field.name for field in fields(LoopContract)] == [
        "local_aim",
        "initial_state",
        "action_policy",
        "evaluator",
        "budget",
        "stopping_condition",
        "authority_scope",
    ]
    with pytest.raises(FrozenInstanceError):
        BASE.budget = 9  # type: ignore[misc]


@pytest.mark.parametrize("contract", [BASE, replace(BASE, budget=1), deciding(goal_change="other")])
def test_s1_05_the_result_carries_the_same_aim(contract: LoopContract[int]) -> None:
    assert run_loop(contract).local_aim == "reach two"


def test_s1_05_an_empty_aim_is_refused() -> None:
    with pytest.raises(ContractError, match="local_aim"):
        replace(BASE, local_aim=" ")


def test_s1_06_each_state_is_threaded_to_the_next_attempt() -> None:
    seen = list[int]()

    def policy(context: LoopContext[int]) -> ActionDecision[int]:
        seen.append(context.state)
        return add_one(context)

    assert run_loop(replace(BASE, action_policy=policy, evaluator=reach(3))).final_state == 3
    assert seen == [0, 1, 2]


def test_s1_08_every_attempt_is_evaluated() -> None:
    result = run_loop(replace(BASE, evaluator=reach(9)))
    assert [evaluation.feedback for evaluation in result.evaluations] == ["at 1", "at 2", "at 3"]


def test_s1_09_the_budget_is_the_maximum_of_attempts_and_is_out_of_reach() -> None:
    calls = list[LoopContext[int]]()

    def policy(context: LoopContext[int]) -> ActionDecision[int]:
        calls.append(context)
        return add_one(context)

    result = run_loop(replace(BASE, action_policy=policy, evaluator=reach(9)))
    assert (result.outcome, result.attempts, len(calls)) == (Outcome.BUDGET_EXHAUSTED, 3, 3)
    assert "budget" not in {field.name for field in fields(LoopContext)}


def test_s1_09_a_spent_budget_admits_no_call_at_all() -> None:
    def forbidden(context: LoopContext[int]) -> ActionDecision[int]:
        raise AssertionError("called past the budget")

    finish = advance(replace(BASE, action_policy=forbidden), Progress(state=7, attempts=3))
    assert isinstance(finish, Finish)
    assert (finish.result.outcome, finish.result.attempts) == (Outcome.BUDGET_EXHAUSTED, 3)
    assert (finish.result.final_state, finish.result.evaluations) == (7, ())


def test_s1_09_a_spent_budget_is_known_at_once_and_not_one_wake_up_later() -> None:
    contract = replace(BASE, budget=1)
    finish = advance(contract, start(contract))
    assert isinstance(finish, Finish)
    assert finish.result.outcome is Outcome.BUDGET_EXHAUSTED
    assert [evaluation.feedback for evaluation in finish.result.evaluations] == ["at 1"]


def test_s1_01_loops_of_one_goal_have_aims_budgets_and_scopes_of_their_own() -> None:
    """What an inner loop came to is for the outer one to judge."""
    inner = replace(
        BASE,
        local_aim="one step",
        evaluator=reach(9),
        budget=2,
        authority_scope=AuthorityScope(allowed_actions=frozenset({"add"}), required_authority="me"),
    )
    results = list[LoopResult[int]]()

    def policy(context: LoopContext[int]) -> ActionDecision[int]:
        results.append(run_loop(replace(inner, initial_state=context.state)))
        return ActionDecision(action="delegate", state=results[-1].final_state)

    outer = run_loop(
        replace(
            BASE,
            action_policy=policy,
            evaluator=reach(4),
            authority_scope=AuthorityScope(allowed_actions=frozenset({"delegate"})),
        )
    )
    assert (outer.outcome, outer.attempts, outer.local_aim) == (Outcome.SUCCESS, 2, "reach two")
    assert [(one.outcome, one.attempts, one.local_aim) for one in results] == [
        (Outcome.BUDGET_EXHAUSTED, 2, "one step")
    ] * 2
    assert {one.escalation and one.escalation.required_authority for one in results} == {"me"}


def test_s1_02_tactics_may_change_and_each_attempt_is_judged() -> None:
    def policy(context: LoopContext[int]) -> ActionDecision[int]:
        if context.attempt == 1:
            return add_one(context)
        return ActionDecision(action="double", state=context.state * 2)

    scope = replace(SCOPE, allowed_actions=frozenset({"add", "double"}))
    tactics = replace(BASE, action_policy=policy, evaluator=reach(4), authority_scope=scope)
    result = run_loop(tactics)
    assert (result.outcome, result.final_state, result.local_aim) == (
        Outcome.SUCCESS,
        4,
        "reach two",
    )
    assert [one.feedback for one in result.evaluations] == ["at 1", "at 2", "at 4"]
    outside = run_loop(replace(tactics, authority_scope=SCOPE))
    assert (outside.outcome, outside.attempts, outside.final_state) == (Outcome.ESCALATED, 2, 1)


class _Adder:
    def __call__(self, context: LoopContext[int]) -> ActionDecision[int]:
        return add_one(context)

    def add(self, context: LoopContext[int]) -> ActionDecision[int]:
        return add_one(context)


def _by_one_agent(effects: Effects, context: LoopContext[int]) -> ActionDecision[int]:
    asked = Message(role="user", content=str(context.state))
    return ActionDecision(action="add", state=int(effects.agents.ask("adder", [asked]).text))


def _by_several_agents(effects: Effects, context: LoopContext[int]) -> ActionDecision[int]:
    plan = effects.agents.ask("planner", [Message(role="user", content=str(context.state))])
    return _by_one_agent(effects, replace(context, state=int(plan.text)))


def _by_a_tool(effects: Effects, context: LoopContext[int]) -> ActionDecision[int]:
    assert effects.commands.fix("add", "expr $n + 1").passed
    return add_one(context)


@pytest.mark.parametrize(
    "policy",
    [
        add_one,
        _Adder(),
        _Adder().add,
        _by_one_agent,
        _by_several_agents,
        _by_a_tool,
    ],
)
def test_s1_07_any_callable_is_a_policy(policy: Callable[..., ActionDecision[int]]) -> None:
    numbers = {"planner": ["0", "1"], "adder": ["1", "2"]}
    effects = world(numbers, {"expr $n + 1": [0]}).effects
    needs_effects = "effects" in signature(policy).parameters
    act: Policy = partial(policy, effects) if needs_effects else policy
    result = run_loop(replace(BASE, action_policy=act))
    assert (result.outcome, result.attempts, result.final_state) == (Outcome.SUCCESS, 2, 2)


def test_s1_10_the_stopping_condition_is_apart_from_the_evaluator() -> None:
    result = run_loop(replace(BASE, stopping_condition=lambda _: False))
    assert result.outcome is Outcome.BUDGET_EXHAUSTED
    assert result.evaluations[-1].judgment is Judgment.SUCCESS


def test_s1_11_an_action_outside_the_scope_is_not_applied() -> None:
    result = run_loop(
        replace(BASE, action_policy=lambda _: ActionDecision(action="drop_tables", state=99))
    )
    assert (result.outcome, result.final_state, result.attempts) == (Outcome.ESCALATED, 0, 1)
    assert result.escalation is not None
    assert result.escalation.cause == "authority"
    assert "drop_tables" in result.escalation.reason


def test_s1_12_a_goal_change_is_proposed_and_never_applied() -> None:
    result = run_loop(deciding(state=99, goal_change="reach three"))
    assert result.escalation == Escalation(
        cause="goal_change",
        reason="The loop proposes another goal; it may not apply one.",
        required_authority="graph_governor",
        proposal="reach three",
    )
    assert (result.final_state, result.local_aim) == (0, "reach two")


def test_s1_13_who_decides_is_configurable() -> None:
    scope = replace(SCOPE, required_authority="release_manager")
    for contract in (deciding(goal_change="x"), replace(BASE, budget=1)):
        escalation = run_loop(replace(contract, authority_scope=scope)).escalation
        assert escalation is not None
        assert escalation.required_authority == "release_manager"


def test_s1_14_there_are_exactly_three_outcomes() -> None:
    assert [outcome.value for outcome in Outcome] == ["success", "budget_exhausted", "escalated"]


def test_s1_15_a_success_has_its_evaluation() -> None:
    result = run_loop(BASE)
    assert (result.outcome, result.attempts) == (Outcome.SUCCESS, 2)
    assert result.evaluations[-1].judgment is Judgment.SUCCESS
    with pytest.raises(ContractError, match="S1-15"):
        LoopResult(outcome=Outcome.SUCCESS, local_aim="x", attempts=1, final_state=1)


def test_s1_15_a_condition_that_fires_without_acceptance_is_an_error() -> None:
    with pytest.raises(ContractError, match="did not accept"):
        run_loop(replace(BASE, stopping_condition=lambda _: True))


def test_s1_16_exhaustion_hands_back_the_state_and_an_escalation() -> None:
    result = run_loop(replace(BASE, budget=1))
    assert (result.outcome, result.final_state, result.attempts) == (Outcome.BUDGET_EXHAUSTED, 1, 1)
    assert result.escalation == Escalation(
        cause="iterations",
        reason="Loop budget exhausted before the stopping condition was met.",
        required_authority="graph_governor",
    )


def test_s1_20_policy_and_evaluator_are_swapped_without_the_runner() -> None:
    double: Policy = lambda context: ActionDecision(action="add", state=context.state + 2)  # noqa: E731
    assert run_loop(replace(BASE, action_policy=double)).attempts == 1
    assert run_loop(replace(BASE, evaluator=reach(3))).attempts == 3


@pytest.mark.parametrize(
    ("contract", "outcome", "attempts", "state"),
    [
        (BASE, "success", 2, 2),
        (replace(BASE, budget=1), "budget_exhausted", 1, 1),
        (deciding(state=9, goal_change="x"), "escalated", 1, 0),
    ],
)
def test_s1_24_a_result_says_how_far_it_came(
    contract: LoopContract[int], outcome: str, attempts: int, state: int
) -> None:
    result = run_loop(contract)
    assert (result.outcome.value, result.attempts, result.final_state) == (outcome, attempts, state)
    assert (result.escalation is None) == (outcome == "success")
    if outcome == "budget_exhausted":
        assert result.evaluations[-1].feedback == "at 1"


def test_s1_x1_the_order_of_an_attempt() -> None:
    calls = list[str]()

    def policy(context: LoopContext[int]) -> ActionDecision[int]:
        calls.append("policy")
        return add_one(context)

    def evaluator(state: int) -> Evaluation:
        calls.append("evaluator")
        return Evaluation(judgment=Judgment.CONTINUE, feedback="more")

    def condition(evaluation: Evaluation) -> bool:
        calls.append("condition")
        return False

    contract = replace(
        BASE, action_policy=policy, evaluator=evaluator, stopping_condition=condition
    )
    step = advance(contract, start(contract))
    assert isinstance(step, Continue)
    assert calls == ["policy", "evaluator", "condition"]
    assert step.progress == Progress(state=1, attempts=1, feedback="more")


def test_s1_x1_an_allowed_action_without_a_state_is_an_error() -> None:
    with pytest.raises(ContractError, match="led to no state"):
        run_loop(deciding())


def test_s1_x2_a_crossing_keeps_the_state_from_before_and_is_not_evaluated() -> None:
    def policy(context: LoopContext[int]) -> ActionDecision[int]:
        return replace(add_one(context), action="add" if context.attempt == 1 else "delete")

    result = run_loop(replace(BASE, action_policy=policy, evaluator=reach(9)))
    assert (result.attempts, result.final_state, len(result.evaluations)) == (2, 1, 1)


def test_s1_x2_a_policy_may_say_that_it_cannot_go_on() -> None:
    refusal = Escalation(cause="refusal", reason="declined")
    result = run_loop(deciding(state=99, escalation=refusal))
    assert result.outcome is Outcome.ESCALATED
    assert result.escalation == replace(refusal, required_authority="graph_governor")
    assert (result.final_state, result.evaluations) == (0, ())


def test_s1_x3_an_escalating_judgment_wins_over_the_stopping_condition() -> None:
    asking = Evaluation(judgment=Judgment.ESCALATE, feedback="ask a person", cause="doubt")
    result = run_loop(
        replace(BASE, evaluator=lambda _: asking, stopping_condition=lambda _: True, budget=1)
    )
    assert (result.outcome, result.final_state, result.evaluations) == (
        Outcome.ESCALATED,
        1,
        (asking,),
    )
    assert result.escalation == Escalation(
        cause="doubt", reason="ask a person", required_authority="graph_governor"
    )


def test_s1_x4_the_budget_reason_has_its_exact_words() -> None:
    assert BUDGET_REASON == "Loop budget exhausted before the stopping condition was met."


def test_s1_x5_the_policy_sees_aim_state_attempt_feedback_and_scope() -> None:
    seen = list[LoopContext[int]]()

    def policy(context: LoopContext[int]) -> ActionDecision[int]:
        seen.append(context)
        return add_one(context)

    run_loop(replace(BASE, action_policy=policy))
    assert seen == [
        LoopContext(
            local_aim="reach two", state=0, attempt=1, feedback=None, authority_scope=SCOPE
        ),
        LoopContext(
            local_aim="reach two", state=1, attempt=2, feedback="at 1", authority_scope=SCOPE
        ),
    ]


def test_one_attempt_at_a_time_equals_the_whole_loop() -> None:
    """A worker that stores the progress between attempts gets the result of `run_loop`."""
    contract = replace(BASE, evaluator=reach(3))
    first = advance(contract, start(contract))
    assert isinstance(first, Continue)
    second = advance(contract, first.progress)
    assert isinstance(second, Continue)
    third = advance(contract, second.progress)
    assert isinstance(third, Finish)
    assert third.result == replace(
        run_loop(contract), evaluations=(Evaluation(judgment=Judgment.SUCCESS, feedback="at 3"),)
    )
