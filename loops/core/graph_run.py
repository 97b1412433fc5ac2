"""The rule of every graph: what starts when, and what its signals and its governor make of it.

A loop converges by itself; what comes after it, and every change of the goal, is decided here.
`run_graph` drives a graph in one process; the server drives the same `advance` and keeps what it
came to in the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from loops.core.errors import ContractError
from loops.core.graph import Graph, GraphError, GraphOutcome, GraphProblem, Mode, Signal, Verdict


@dataclass(frozen=True, kw_only=True)
class NodeResult:
    """What a node came to."""

    signal: Signal = Signal.OK
    output: Any = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Start:
    """These nodes start now, all with the same view of what is done."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Nodes are at work; nothing is decided before the last of them has ended."""


@dataclass(frozen=True, kw_only=True)
class AskGovernor:
    """The governor decides, on every output and signal."""

    reason: str
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class End:
    """The graph is over."""

    outcome: GraphOutcome
    reason: str
    skipped: tuple[str, ...] = ()
    new_goal: str = ""


Step = Start | Wait | AskGovernor | End


def ready(graph: Graph, done: Iterable[str]) -> tuple[str, ...]:
    """The nodes that can start: the first by definition, or all of them (S1-X7)."""
    over = set(done)
    found = [
        name
        for name in graph.loops
        if name not in over and all(before in over for before in graph.before(name))
    ]
    return tuple(found[:1] if graph.mode is Mode.SERIAL else found)


def advance(graph: Graph, done: Mapping[str, NodeResult], running: Iterable[str] = ()) -> Step:
    """What comes next.

    1. A hard veto ends the graph at once; the governor is not called (S1-X8).
    2. What has started ends first, so that no order of ends changes the outcome.
    3. An escalation skips everything else and calls the governor, if there is one (S1-X9).
    4. Ready nodes start. When none are left, the governor decides, or it is a success; a soft
       objection blocks nothing (S1-X11).
    """
    left = tuple(name for name in graph.loops if name not in done)
    if veto := _first(graph, done, Signal.HARD_VETO):
        reason = _said(veto, done[veto], "vetoed")
        return End(outcome=GraphOutcome.HARD_VETOED, reason=reason, skipped=left)
    if any(name not in done for name in running):
        return Wait()
    if stuck := _first(graph, done, Signal.ESCALATION):
        reason = _said(stuck, done[stuck], "escalated")
        return _decide(graph, End(outcome=GraphOutcome.ESCALATED, reason=reason, skipped=left))
    if names := ready(graph, done):
        return Start(nodes=names)
    return _decide(graph, End(outcome=GraphOutcome.SUCCESS, reason="Every task has ended."))


def _decide(graph: Graph, otherwise: End) -> AskGovernor | End:
    if graph.governor:
        return AskGovernor(reason=otherwise.reason, skipped=otherwise.skipped)
    return otherwise


def govern(verdict: Verdict, new_goal: str = "") -> End:
    """What a governor's decision makes of the graph (S1-X10).

    Raises `ContractError` for a change of the goal without a new one.
    """
    match verdict:
        case Verdict.APPROVE:
            return End(outcome=GraphOutcome.SUCCESS, reason="Approved by its governor.")
        case Verdict.REJECT:
            return End(outcome=GraphOutcome.REJECTED, reason="Rejected by its governor.")
        case Verdict.CHANGE_GOAL:
            goal = new_goal.strip()
            if not goal:
                raise ContractError("a change of the goal needs the new goal")
            reason = "Its governor changed the goal."
            return End(outcome=GraphOutcome.GOAL_CHANGED, reason=reason, new_goal=goal)


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """What a node sees: itself, the aim, and what the nodes before it came to."""

    name: str
    aim: str
    outputs: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class GovernorContext:
    """What a governor decides on."""

    aim: str
    reason: str
    outputs: Mapping[str, Any]
    signals: Mapping[str, Signal]
    skipped: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GovernorDecision:
    """The decision, with the new goal if it changes."""

    verdict: Verdict
    new_goal: str = ""


@dataclass(frozen=True, kw_only=True)
class GraphResult:
    """How a graph ended, with everything its nodes came to."""

    outcome: GraphOutcome
    aim: str
    """As it was given: it never changes."""
    final_aim: str
    """The governor's new goal, or the aim."""
    reason: str
    results: Mapping[str, NodeResult] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()


RunNode = Callable[[NodeContext], NodeResult]
MapNodes = Callable[[RunNode, list[NodeContext]], Iterable[NodeResult]]


def run_graph(
    graph: Graph,
    run_node: RunNode,
    *,
    governor: Callable[[GovernorContext], GovernorDecision] | None = None,
    map_nodes: MapNodes = map,
) -> GraphResult:
    """Run the graph to its end in this process.

    `map_nodes` runs the nodes of one batch, such as the `map` of a thread pool. Raises `GraphError`
    with every problem before anything runs.
    """
    problems = graph.problems()
    if graph.governor and governor is None:
        message = f"{graph.governor} governs this graph: pass the function that decides"
        problems.append(GraphProblem(place="governor", code="missing", message=message))
    if problems:
        raise GraphError(problems)
    done: dict[str, NodeResult] = {}
    step = advance(graph, done)
    while isinstance(step, Start):
        contexts = [_context(graph, name, done) for name in step.nodes]
        done.update(zip(step.nodes, map_nodes(run_node, contexts), strict=True))
        step = advance(graph, done)
    skipped: tuple[str, ...] = ()
    if isinstance(step, AskGovernor) and governor is not None:
        skipped = step.skipped
        decision = governor(_governor_context(graph, step, done))
        step = govern(decision.verdict, decision.new_goal)
    if not isinstance(step, End):
        raise ContractError(f"a graph that runs in one process cannot {type(step).__name__}")
    return GraphResult(
        outcome=step.outcome,
        aim=graph.aim,
        final_aim=step.new_goal or graph.aim,
        reason=step.reason,
        results=done,
        skipped=step.skipped or skipped,
    )


def _first(graph: Graph, done: Mapping[str, NodeResult], signal: Signal) -> str:
    names = (name for name in graph.loops if name in done and done[name].signal is signal)
    return next(names, "")


def _said(name: str, result: NodeResult, verb: str) -> str:
    return f"{name} {verb}: {result.reason}" if result.reason else f"{name} {verb}."


def _context(graph: Graph, name: str, done: Mapping[str, NodeResult]) -> NodeContext:
    seen = graph.ancestors(name)
    outputs = {one: result.output for one, result in done.items() if one in seen}
    return NodeContext(name=name, aim=graph.aim, outputs=MappingProxyType(outputs))


def _governor_context(
    graph: Graph, step: AskGovernor, done: Mapping[str, NodeResult]
) -> GovernorContext:
    return GovernorContext(
        aim=graph.aim,
        reason=step.reason,
        outputs=MappingProxyType({name: result.output for name, result in done.items()}),
        signals=MappingProxyType({name: result.signal for name, result in done.items()}),
        skipped=step.skipped,
    )
