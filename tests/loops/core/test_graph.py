"""The rule of graphs, without a database: what starts, what stops, who decides."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from loops.core.errors import ContractError
from loops.core.graph import Edge, EdgeKind, Graph, GraphError, GraphOutcome, Mode, Signal, Verdict
from loops.core.graph_run import (
    End,
    GovernorContext,
    GovernorDecision,
    NodeContext,
    NodeResult,
    Start,
    Wait,
    advance,
    govern,
    ready,
    run_graph,
)


def graph(*names: str, edges: str = "", **facts: Any) -> Graph:
    """`edges` as `a>b b>c:veto`."""
    found = []
    for text in edges.split():
        ends, _, kind = text.partition(":")
        source, target = ends.split(">")
        found.append(Edge(source=source, target=target, kind=EdgeKind(kind or "dependency")))
    return Graph(aim="ship it", nodes=names, edges=tuple(found), **facts)


def saying(**signals: str) -> Callable[[NodeContext], NodeResult]:
    """Nodes that end with these signals, else ok; each output names what it saw."""

    def run(context: NodeContext) -> NodeResult:
        signal = Signal(signals.get(context.name, "ok"))
        output = f"{context.name}({','.join(context.outputs)})"
        return NodeResult(signal=signal, output=output, reason=f"{context.name} said so")

    return run


class Governor:
    """Answers with one decision and keeps what it was asked."""

    def __init__(self, verdict: str = "approve", new_goal: str = "") -> None:
        self.asked: list[GovernorContext] = []
        self.decision = GovernorDecision(verdict=Verdict(verdict), new_goal=new_goal)

    def __call__(self, context: GovernorContext) -> GovernorDecision:
        self.asked.append(context)
        return self.decision


def test_s1_x06_every_problem_is_reported_at_once_with_its_place() -> None:
    broken = graph("a", "b", "a", "", edges="a>z y>b b>b", governor="lead")
    found = [(p.place, p.code) for p in broken.problems()]
    assert found == [
        ("nodes.2", "duplicate"),
        ("nodes.3", "missing"),
        ("governor", "unknown"),
        ("edges.0.to", "unknown"),
        ("edges.1.from", "unknown"),
        ("edges", "cycle"),
    ]


def test_s1_x06_nothing_can_wait_for_the_governor_and_there_must_be_a_task() -> None:
    assert [p.code for p in graph("lead", governor="lead").problems()] == ["missing"]
    waits = graph("a", "lead", edges="lead>a", governor="lead")
    assert [p.place for p in waits.problems()] == ["edges.0.from"]
    assert graph("a", "lead", edges="a>lead:approval", governor="lead").problems() == []


def test_rc162_a_cycle_is_an_error_with_its_path_and_nothing_is_run() -> None:
    ran: list[str] = []
    broken = graph("a", "b", edges="b>a a>b")
    with pytest.raises(GraphError) as caught:
        run_graph(broken, lambda context: ran.append(context.name) or NodeResult())
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("cycle", ("a", "b", "a"))
    assert ran == []


@pytest.mark.parametrize(
    ("edges", "paths"),
    [
        ("a>a", [("a", "a")]),
        ("a>b b>c c>b d>e e>d", [("b", "c", "b"), ("d", "e", "d")]),
        ("a>b a>c c>d d>a b>d", [("a", "b", "d", "a")]),
        ("a>b a>c b>d c>d d>e", []),
    ],
)
def test_s1_x06_every_group_that_waits_for_itself_is_named(
    edges: str, paths: list[tuple[str, ...]]
) -> None:
    assert [p.path for p in graph(*"abcde", edges=edges).problems()] == paths


def test_s1_x07_serial_starts_one_ready_node_in_definition_order() -> None:
    one = graph("c", "a", "b", edges="b>a")
    assert ready(one, ()) == ("c",)
    assert ready(one, ("c",)) == ("b",)
    assert ready(one, ("c", "b")) == ("a",)


def test_s1_x07_parallel_starts_every_ready_node_with_the_same_view() -> None:
    seen: dict[str, tuple[str, ...]] = {}

    def run(context: NodeContext) -> NodeResult:
        seen[context.name] = tuple(context.outputs)
        return NodeResult(output=context.name)

    many = graph(*"abcd", edges="a>b a>c b>d c>d", mode=Mode.PARALLEL)
    assert ready(many, ("a",)) == ("b", "c")
    with ThreadPoolExecutor(2) as pool:
        run_graph(many, run, map_nodes=pool.map)
    assert seen == {"a": (), "b": ("a",), "c": ("a",), "d": ("a", "b", "c")}


def test_s1_x07_serial_and_parallel_give_the_same_merged_result() -> None:
    shapes = ["", "a>b", "a>c b>c", "a>b a>c b>d c>d", "d>a c>b"]
    for edges in shapes:
        results = [
            run_graph(graph(*"abcd", edges=edges, mode=mode), saying(b="soft_objection"))
            for mode in Mode
        ]
        serial, parallel = results
        assert dict(serial.results) == dict(parallel.results), edges
        assert serial.outcome is parallel.outcome is GraphOutcome.SUCCESS


def test_s1_x08_a_hard_veto_stops_before_any_downstream_node_without_the_governor() -> None:
    governor = Governor()
    ended = run_graph(
        graph(*"abcd", "lead", edges="a>b b>c", governor="lead", mode=Mode.PARALLEL),
        saying(a="hard_veto", d="escalation"),
        governor=governor,
    )
    assert ended.outcome is GraphOutcome.HARD_VETOED
    assert governor.asked == []
    assert (set(ended.results), ended.skipped) == ({"a", "d"}, ("b", "c"))
    assert ended.reason == "a vetoed: a said so"


def test_s1_x08_a_hard_veto_counts_at_once_whatever_still_runs() -> None:
    done = {"a": NodeResult(signal=Signal.HARD_VETO)}
    step = advance(graph("a", "b", mode=Mode.PARALLEL), done, running=("a", "b"))
    assert isinstance(step, End)
    assert step.outcome is GraphOutcome.HARD_VETOED


def test_s1_x09_an_escalation_skips_the_rest_and_calls_the_governor_with_everything() -> None:
    governor = Governor("reject")
    ended = run_graph(
        graph("a", "b", "c", "lead", edges="a>b b>c", governor="lead"),
        saying(a="soft_objection", b="escalation"),
        governor=governor,
    )
    (asked,) = governor.asked
    assert asked.outputs == {"a": "a()", "b": "b(a)"}
    assert asked.signals == {"a": Signal.SOFT_OBJECTION, "b": Signal.ESCALATION}
    assert asked.skipped == ended.skipped == ("c",)
    assert ended.outcome is GraphOutcome.REJECTED


def test_s1_x09_without_a_governor_it_is_escalated() -> None:
    ended = run_graph(graph("a", "b"), saying(a="escalation"))
    assert (ended.outcome, ended.skipped) == (GraphOutcome.ESCALATED, ("b",))
    assert ended.final_aim == "ship it"


def test_s1_x09_what_runs_ends_before_an_escalation_is_acted_on() -> None:
    done = {"a": NodeResult(signal=Signal.ESCALATION)}
    both = graph("a", "b", mode=Mode.PARALLEL)
    assert isinstance(advance(both, done, running=("a", "b")), Wait)


@pytest.mark.parametrize(
    ("verdict", "goal", "outcome", "final"),
    [
        ("approve", "", GraphOutcome.SUCCESS, "ship it"),
        ("reject", "", GraphOutcome.REJECTED, "ship it"),
        ("change_goal", " ship half \n", GraphOutcome.GOAL_CHANGED, "ship half"),
    ],
)
def test_s1_x10_what_the_governor_decides(
    verdict: str, goal: str, outcome: GraphOutcome, final: str
) -> None:
    ended = run_graph(
        graph("a", "lead", governor="lead"), saying(), governor=Governor(verdict, goal)
    )
    assert (ended.outcome, ended.final_aim, ended.aim) == (outcome, final, "ship it")


def test_s1_x10_a_change_of_the_goal_needs_the_new_goal() -> None:
    with pytest.raises(ContractError, match="new goal"):
        govern(Verdict.CHANGE_GOAL, " ")


def test_s1_x11_a_soft_objection_blocks_nothing_and_the_governor_sees_it() -> None:
    governor = Governor()
    ended = run_graph(
        graph("a", "b", "lead", edges="a>b", governor="lead"),
        saying(a="soft_objection"),
        governor=governor,
    )
    assert set(ended.results) == {"a", "b"}
    assert governor.asked[0].signals["a"] is Signal.SOFT_OBJECTION
    assert ended.outcome is GraphOutcome.SUCCESS


def test_s1_x13_every_kind_of_edge_makes_its_target_wait() -> None:
    for kind in ("handoff", "data", "dependency", "veto", "approval"):
        step = advance(graph("b", "a", edges=f"a>b:{kind}"), {})
        assert step == Start(nodes=("a",))


def test_s1_22_a_governor_must_be_there_before_anything_runs() -> None:
    with pytest.raises(GraphError, match="lead governs"):
        run_graph(graph("a", "lead", governor="lead"), saying())
