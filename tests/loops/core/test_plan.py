"""A plan is held against seven rules, and every broken one is reported at once (S2-11 to S2-18)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loops.core.plan import (
    Ground,
    Plan,
    PlanStep,
    Risk,
    open_assumptions,
    problems_of,
    ready_steps,
    risk_of,
)

TOOLS = {"read_file": Risk.READ, "write_file": Risk.REVERSIBLE_WRITE, "pay": Risk.HIGH_IMPACT}
GROUND = Ground(remaining_steps=5, available=TOOLS, authorized=TOOLS)


def step(id_: str, *depends_on: str, **facts: object) -> PlanStep:
    usual = {"objective": f"do {id_}", "acceptance_criteria": (f"{id_}.txt exists",)}
    return PlanStep(id=id_, depends_on=depends_on, **{**usual, **facts})  # type: ignore[arg-type]


def plan(*steps: PlanStep, **facts: object) -> Plan:
    return Plan(goal="the goal", steps=steps, **facts)  # type: ignore[arg-type]


def codes(found: Plan, ground: Ground = GROUND) -> list[str]:
    return [problem.code for problem in problems_of(found, ground)]


def test_s2_11_a_good_plan_has_no_problem() -> None:
    assert codes(plan(step("a", tool="read_file"), step("b", "a"))) == []


def test_s2_12_rc134_two_steps_with_one_id_are_refused() -> None:
    twice = plan(step("s1", tool="read_file"), step("s1", tool="write_file"))
    assert codes(twice) == ["duplicate_id"]


def test_s2_12_a_dependency_that_is_no_step_is_refused() -> None:
    assert codes(plan(step("a", "ghost"))) == ["missing_dependency"]


def test_s2_12_nothing_may_wait_for_a_step_that_was_not_done() -> None:
    (problem,) = problems_of(plan(step("b", "a")), replace(GROUND, failed={"a"}), after=[step("a")])
    assert (problem.code, "was not done" in problem.message) == ("missing_dependency", True)
    assert problems_of(plan(step("b", "a")), GROUND, after=[step("a")]) == []


def test_s2_12_the_id_of_a_step_that_has_ended_is_taken() -> None:
    (problem,) = problems_of(plan(step("a")), GROUND, after=[step("a")])
    assert problem.code == "duplicate_id"


def test_s2_13_rc162_a_cycle_is_named_with_its_path() -> None:
    (problem,) = problems_of(plan(step("a", "b"), step("b", "a")), GROUND)
    assert (problem.code, problem.path) == ("cycle", ("a", "b", "a"))
    assert "a -> b -> a" in problem.message


def test_s2_13_a_step_that_waits_for_itself_is_a_cycle() -> None:
    (problem,) = problems_of(plan(step("a", "a")), GROUND)
    assert problem.path == ("a", "a")


def test_s2_39_a_chain_of_any_depth_is_looked_through_without_recursion() -> None:
    chain = [step(str(n), str(n + 1)) for n in range(5_000)]
    deep = replace(GROUND, remaining_steps=10_000)
    assert codes(plan(*chain, step("5000")), deep) == []
    assert codes(plan(*chain, step("5000", "0")), deep) == ["cycle"]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_s2_13_a_plan_without_problems_can_always_be_run_to_its_end(
    edges: list[tuple[int, int]],
) -> None:
    steps = [step(str(n), *(str(b) for a, b in edges if a == n)) for n in range(8)]
    found = plan(*steps)
    done: set[str] = set()
    while ready := ready_steps(found, done, done):
        done.add(ready[0].id)
    runs_through = len(done) == len(steps)
    assert runs_through is (codes(found, replace(GROUND, remaining_steps=8)) == [])


def test_s2_14_more_steps_than_are_left_are_refused() -> None:
    two = plan(step("a"), step("b"))
    assert codes(two, replace(GROUND, remaining_steps=2)) == []
    assert codes(two, replace(GROUND, remaining_steps=1)) == ["over_budget"]
    assert codes(plan()) == ["no_steps"]


def test_s2_15_a_tool_must_be_available_and_authorized() -> None:
    named = plan(step("a", tool="pay"))
    without = {name: risk for name, risk in TOOLS.items() if name != "pay"}
    assert codes(named, replace(GROUND, authorized=without)) == ["tool_unauthorized"]
    assert codes(named, replace(GROUND, available=without)) == ["tool_unavailable"]
    unknown = plan(step("a", tool="rm"))
    assert codes(unknown) == ["tool_unauthorized", "tool_unavailable"]


def test_s2_16_the_higher_risk_counts_and_an_unknown_tool_can_do_all() -> None:
    assert risk_of(step("a", tool="pay", risk=Risk.READ), TOOLS) is Risk.HIGH_IMPACT
    assert risk_of(step("a", tool="read_file", risk=Risk.HIGH_IMPACT), TOOLS) is Risk.HIGH_IMPACT
    assert risk_of(step("a", tool="rm"), TOOLS) is Risk.HIGH_IMPACT
    assert risk_of(step("a"), TOOLS) is Risk.READ
    assert codes(plan(step("a", risk=Risk.HIGH_IMPACT))) == ["tool_missing"]


@pytest.mark.parametrize("vague", ["good", "It works.", "Everything is OK!", " ", "done well"])
def test_s2_17_a_criterion_that_names_nothing_observable_is_refused(vague: str) -> None:
    assert codes(plan(step("a", acceptance_criteria=(vague,)))) == ["vague_criterion"]


def test_s2_17_a_step_without_a_criterion_is_refused() -> None:
    assert codes(plan(step("a", acceptance_criteria=()))) == ["vague_criterion"]
    assert codes(plan(step("a", acceptance_criteria=("pytest exits with 0",)))) == []


def test_s2_18_assumptions_stay_open_until_a_person_has_seen_them() -> None:
    found = plan(step("a"), assumptions=("The API is v2.", "Only Linux"))
    assert open_assumptions(found, ()) == ("The API is v2.", "Only Linux")
    assert open_assumptions(found, ["the  API is v2", "only linux."]) == ()


def test_s2_02_every_problem_is_reported_at_once() -> None:
    bad = plan(
        step("a", "b", tool="rm", acceptance_criteria=("good",)),
        step("b", "a", "ghost"),
        step("b"),
    )
    found = codes(bad, replace(GROUND, remaining_steps=1))
    assert found == [
        "duplicate_id",
        "missing_dependency",
        "over_budget",
        "tool_unauthorized",
        "tool_unavailable",
        "vague_criterion",
    ]
