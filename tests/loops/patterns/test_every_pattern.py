"""What holds for every pattern in the table. A new one is picked up by itself."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import ValidationError

import loops.patterns
from loops.core.contract import (
    Continue,
    Finish,
    LoopResult,
    Outcome,
    Progress,
    Turn,
    Wait,
    advance,
)
from loops.core.effects import CommandResult, Effects, Message, Reply
from loops.core.errors import AgentFault, CommandFault
from loops.patterns import NAMES, UnknownPattern, all_patterns, get
from loops.patterns.base import Pattern
from tests.loops.patterns.fakes import INFO

PATTERNS = all_patterns()
every_pattern = pytest.mark.parametrize("pattern", PATTERNS, ids=[p.name for p in PATTERNS])


@dataclass
class Stubborn:
    """A world in which nothing ever gets better, though everything keeps changing."""

    fault: Exception | None = None
    trace: list[Any] = field(default_factory=list)

    def has(self, role: str) -> bool:
        return role != ""

    def ask(
        self,
        role: str,
        messages: Sequence[Message],
        *,
        system: str = "",
        schema: Mapping[str, Any] | None = None,
    ) -> Reply:
        self.trace.append((role, tuple(messages), system, schema))
        if self.fault:
            raise self.fault
        answers = {
            "coder": f"~~~\n{len(self.trace)}\n~~~",
            "reviewer": json.dumps(
                {"verdict": "CHANGES_REQUESTED", "reasons": [f"reason {len(self.trace)}"]}
            ),
        }
        return Reply(text=answers.get(role, "no"))

    def work(self, role: str, prompt: str, *, checks: Mapping[str, str] | None = None) -> Reply:
        return self.ask(role, [Message(role="user", content=prompt)], schema=checks)

    def check(self, name: str, command: str) -> CommandResult:
        self.trace.append((name, command))
        if self.fault:
            raise self.fault
        return CommandResult(exit_code=1, output="no")

    def check_all(self, checks: Sequence[tuple[str, str]]) -> list[CommandResult]:
        return [self.check(name, command) for name, command in checks]

    def fix(self, name: str, command: str) -> CommandResult:
        return self.check(name, command)

    def snapshot(self) -> str:
        return f"tree-{len(self.trace)}"

    def change(self, characters: int) -> str:
        return "change"[:characters]

    def undo(self, before: str, after: str) -> None:
        self.trace.append(("undo", before, after))

    @property
    def effects(self) -> Effects:
        return Effects(agents=self, commands=self, workspace=self)


def play(pattern: Pattern[Any, Any], world: Stubborn, budget: int) -> LoopResult[Any]:
    """Attempt by attempt, as a worker does it: spec and state pass through JSON in between."""
    spec = pattern.spec.model_validate_json(json.dumps(pattern.example))
    info = replace(INFO, budget=budget)
    progress = Progress(state=pattern.initial(spec))
    while True:
        stored = json.loads(json.dumps(pattern.dump_state(progress.state)))
        loaded = pattern.load_state(spec, stored)
        assert loaded == progress.state
        contract = pattern.build(spec, loaded, world.effects, info)
        step = advance(contract, replace(progress, state=loaded))
        if isinstance(step, Finish):
            return step.result
        progress = step.progress


def budgets(pattern: Pattern[Any, Any]) -> list[int]:
    return [1] if pattern.max_iterations == 1 else [1, 4]


@every_pattern
def test_it_is_bounded_and_nothing_is_accepted_in_a_world_that_never_gets_better(
    pattern: Pattern[Any, Any],
) -> None:
    """S0-X3, S1-23: what never gets better ends all the same."""
    for budget in budgets(pattern):
        world = Stubborn()
        result = play(pattern, world, budget)
        assert result.attempts <= budget
        assert result.local_aim == INFO.local_aim
        assert not (world.trace and result.outcome is Outcome.SUCCESS)


@every_pattern
def test_s3_01_the_guard_comes_first_in_every_pattern(pattern: Pattern[Any, Any]) -> None:
    spec, world = pattern.spec.model_validate(pattern.example), Stubborn()
    for budget in budgets(pattern):
        info = replace(INFO, budget=budget)
        contract = pattern.build(spec, pattern.initial(spec), world.effects, info)
        turn = advance(contract, Progress(state=contract.initial_state, attempts=budget))
        assert isinstance(turn, Finish)
        assert (turn.result.outcome, turn.result.attempts) == (Outcome.BUDGET_EXHAUSTED, budget)
    assert world.trace == []


class Boastful(Stubborn):
    """Everybody says that all is well, and every command says that it is not."""

    def ask(
        self,
        role: str,
        messages: Sequence[Message],
        *,
        system: str = "",
        schema: Mapping[str, Any] | None = None,
    ) -> Reply:
        self.trace.append((role, tuple(messages), system, schema))
        passed = {"grade": 10, "strategy": "pass", "feedback": "Done, all checks are green."}
        return Reply(text=json.dumps(passed))


@pytest.mark.parametrize("name", ["check_fix", "implement_verify", "one_pass"])
def test_s1_23_s1_08_a_model_s_word_does_not_outweigh_a_red_check(name: str) -> None:
    pattern = get(name)
    for budget in budgets(pattern):
        world = Boastful()
        assert play(pattern, world, budget).outcome is not Outcome.SUCCESS
        assert world.trace


DEFAULTS = {
    "coder_reviewer": "gate",
    "implement_verify": "gate",
    "plan_execute_review": "gate",
    "check_fix": "stop",
    "contract": "stop",
}


@every_pattern
def test_d1_what_becomes_of_a_run_at_its_cap_by_default(pattern: Pattern[Any, Any]) -> None:
    assert pattern.default_on_limit == DEFAULTS.get(pattern.name, pattern.default_on_limit)
    assert pattern.limit_reason(
        pattern.spec.model_validate(pattern.example), pattern.default_limits
    )


def test_s3_09_no_pattern_loops_by_itself() -> None:
    """What follows an attempt is a value: `advance` returns it, and one runner reads it."""
    assert {get_origin(turn) for turn in get_args(Turn)} == {Continue, Wait, Finish}
    folder = Path(loops.patterns.__path__[0])
    for name in NAMES:
        tree = ast.parse((folder / f"{name}.py").read_text())
        found = [node for node in ast.walk(tree) if isinstance(node, ast.While)]
        assert found == [], name
        called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not called & {"run_loop", "advance"}, name


@every_pattern
def test_the_same_history_gives_the_same_calls_and_the_same_result(
    pattern: Pattern[Any, Any],
) -> None:
    for budget in budgets(pattern):
        first, second = Stubborn(), Stubborn()
        assert play(pattern, first, budget) == play(pattern, second, budget)
        assert first.trace == second.trace


@every_pattern
@pytest.mark.parametrize("fault", [AgentFault("503"), CommandFault("no shell")])
def test_a_fault_is_never_turned_into_a_judgment(
    pattern: Pattern[Any, Any], fault: Exception
) -> None:
    world = Stubborn(fault=fault)
    try:
        result = play(pattern, world, budgets(pattern)[-1])
    except type(fault) as raised:
        assert raised is fault  # noqa: PT017
        assert len(world.trace) == 1
    else:
        assert world.trace == []
        assert result.attempts


@every_pattern
def test_the_budget_is_the_task_s_own(pattern: Pattern[Any, Any]) -> None:
    spec = pattern.spec.model_validate(pattern.example)
    for budget in budgets(pattern):
        info = replace(INFO, budget=budget, required_authority="owner")
        contract = pattern.build(spec, pattern.initial(spec), Stubborn().effects, info)
        assert (contract.budget, contract.local_aim) == (budget, info.local_aim)
        assert contract.authority_scope.required_authority == "owner"
        if pattern.allowed_actions:
            assert contract.authority_scope.allowed_actions == pattern.allowed_actions


@every_pattern
def test_its_spec_refuses_unknown_fields(pattern: Pattern[Any, Any]) -> None:
    with pytest.raises(ValidationError, match="budgett"):
        pattern.spec.model_validate({**pattern.example, "budgett": 1})


def is_form_type(annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return True
    if get_origin(annotation) is list:
        return get_args(annotation) == (str,)
    return annotation in (str, int, bool) or issubclass(annotation, Enum)


@every_pattern
def test_a_form_can_be_made_from_its_spec(pattern: Pattern[Any, Any]) -> None:
    for name, described in pattern.spec.model_fields.items():
        assert described.title, name
        assert described.description, name
        assert described.description.endswith("."), name
        assert is_form_type(described.annotation), name
    properties = pattern.spec.model_json_schema()["properties"]
    lists = [name for name, schema in properties.items() if schema.get("type") == "array"]
    assert all(properties[name].get("multiline") for name in lists)


@every_pattern
def test_it_says_what_people_need_to_know(pattern: Pattern[Any, Any]) -> None:
    spec = pattern.spec.model_validate(pattern.example)
    for sentence in (pattern.summary, pattern.stops_when):
        assert sentence.endswith(".")
        assert "\n" not in sentence
    assert pattern.limit_reason(spec, pattern.default_limits)
    assert pattern.needs(spec).roles <= set(pattern.roles)
    assert {role for role, always in pattern.roles.items() if always} <= pattern.needs(spec).roles


@every_pattern
def test_its_defaults_can_be_submitted_and_misfits_cannot(pattern: Pattern[Any, Any]) -> None:
    spec = pattern.spec.model_validate(pattern.example)
    needs = pattern.needs(spec)

    def misfits(roles: Collection[str], *, has_workspace: bool = needs.workspace) -> list[str]:
        iterations = pattern.default_limits.iterations
        found = pattern.misfits(
            spec, iterations=iterations, roles=roles, has_workspace=has_workspace
        )
        return [misfit.field for misfit in found]

    assert misfits(needs.roles) == []
    assert misfits(()) == [f"agents.{role}" for role in sorted(needs.roles)]
    unwanted = ["source.repo"] if pattern.uses_workspace == "none" else []
    assert misfits(needs.roles, has_workspace=True) == unwanted
    assert needs.workspace or pattern.uses_workspace != "required"


def test_every_file_that_is_a_pattern_stands_in_the_table() -> None:
    folder = Path(loops.patterns.__path__[0])
    files = {file.stem for file in folder.glob("*.py") if "\nPATTERN = " in file.read_text()}
    assert files == set(NAMES)
    assert [pattern.name for pattern in PATTERNS] == list(NAMES)


def test_an_unknown_pattern_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownPattern, match=r"'base'; there are coder_reviewer, check_fix"):
        get("base")


def test_core_and_patterns_load_no_framework() -> None:
    script = (
        "import sys, pkgutil, importlib, loops.core, loops.patterns\n"
        "for package in (loops.core, loops.patterns):\n"
        "    for found in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(found.name)\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(ran.stdout.split())
    assert "pydantic" in loaded
    foreign = {"django", "redis", "celery", "kombu", "channels", "asgiref", "rest_framework"}
    assert not loaded & (foreign | {"workers", "dashboard", "anthropic"})


def test_the_table_itself_loads_nothing_heavy() -> None:
    script = "import sys, loops.patterns; print('pydantic' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.strip() == "False"
