"""The contract of a graph: nodes, edges between them, and who governs (S1-22)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from loops.core.errors import ContractError


class EdgeKind(StrEnum):
    """What goes along an edge (S1-X13). Every kind makes its target wait for its source."""

    HANDOFF = "handoff"  # the source's files
    DATA = "data"  # the source's result as text
    DEPENDENCY = "dependency"  # nothing but the order
    VETO = "veto"  # the source may stop the target
    APPROVAL = "approval"  # the target judges the source


class Mode(StrEnum):
    """How many ready nodes start at once (S1-X7)."""

    SERIAL = "serial"
    PARALLEL = "parallel"


class Signal(StrEnum):
    """What a node says to its graph when it has ended (S1-X8)."""

    OK = "ok"
    SOFT_OBJECTION = "soft_objection"
    HARD_VETO = "hard_veto"
    ESCALATION = "escalation"


class GraphOutcome(StrEnum):
    """How a graph ended."""

    SUCCESS = "success"
    REJECTED = "rejected"
    GOAL_CHANGED = "goal_changed"
    HARD_VETOED = "hard_vetoed"
    ESCALATED = "escalated"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"


class Verdict(StrEnum):
    """What a governor may say."""

    APPROVE = "approve"
    REJECT = "reject"
    CHANGE_GOAL = "change_goal"


@dataclass(frozen=True, kw_only=True)
class Edge:
    """`target` waits for `source`."""

    source: str
    target: str
    kind: EdgeKind = EdgeKind.DEPENDENCY


@dataclass(frozen=True, kw_only=True)
class GraphProblem:
    """One thing that is wrong with a graph, and where."""

    place: str
    """Dotted name, such as `edges.2.from` or `governor`."""
    code: str
    message: str
    path: tuple[str, ...] = ()
    """Of a cycle: its nodes, the first one again at the end."""


class GraphError(ContractError):
    """The graph cannot be run as it is written. Nothing was run."""

    def __init__(self, problems: list[GraphProblem]) -> None:
        super().__init__("; ".join(f"{p.place}: {p.message}" for p in problems))
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Nodes by name in their order of definition, edges, and who governs, if anybody."""

    aim: str
    nodes: tuple[str, ...]
    edges: tuple[Edge, ...] = ()
    mode: Mode = Mode.SERIAL
    governor: str = ""
    """The node that decides at the end. It is no loop and nothing waits for it."""

    @property
    def loops(self) -> tuple[str, ...]:
        """Every node but the governor."""
        return tuple(name for name in self.nodes if not self.governor or name != self.governor)

    def before(self, name: str) -> tuple[str, ...]:
        """What the node waits for directly."""
        return tuple(dict.fromkeys(e.source for e in self.edges if e.target == name))

    def ancestors(self, name: str) -> frozenset[str]:
        """What the node waits for, directly or not."""
        found: set[str] = set()
        left = list(self.before(name))
        while left:
            one = left.pop()
            if one not in found:
                found.add(one)
                left += self.before(one)
        return frozenset(found)

    def problems(self) -> list[GraphProblem]:
        """Everything that is wrong with it, in the order of its parts (S1-X6)."""
        return [
            *self._name_problems(),
            *self._governor_problems(),
            *self._edge_problems(),
            *(_cycle_problem(path) for path in self._cycles()),
        ]

    def _name_problems(self) -> Iterator[GraphProblem]:
        if not self.loops:
            yield GraphProblem(place="nodes", code="missing", message="name at least one task")
        seen: set[str] = set()
        for at, name in enumerate(self.nodes):
            if not name.strip():
                yield GraphProblem(place=f"nodes.{at}", code="missing", message="has no name")
            if name in seen:
                message = f"there is a node {name!r} already: names must differ"
                yield GraphProblem(place=f"nodes.{at}", code="duplicate", message=message)
            seen.add(name)

    def _governor_problems(self) -> Iterator[GraphProblem]:
        if self.governor and self.governor not in self.nodes:
            message = f"there is no node {self.governor!r}; there are: {', '.join(self.nodes)}"
            yield GraphProblem(place="governor", code="unknown", message=message)

    def _edge_problems(self) -> Iterator[GraphProblem]:
        for at, edge in enumerate(self.edges):
            for end, name in (("from", edge.source), ("to", edge.target)):
                if name not in self.nodes:
                    message = f"there is no node {name!r}; there are: {', '.join(self.nodes)}"
                    yield GraphProblem(place=f"edges.{at}.{end}", code="unknown", message=message)
            if self.governor and edge.source == self.governor:
                message = f"{self.governor} decides at the end: no node can wait for it"
                yield GraphProblem(place=f"edges.{at}.from", code="governor", message=message)

    def _cycles(self) -> Iterator[tuple[str, ...]]:
        """One cycle for every group of nodes that wait for each other."""
        after: dict[str, list[str]] = {name: [] for name in self.nodes}
        for edge in self.edges:
            if edge.source in after and edge.target in after:
                after[edge.source].append(edge.target)
        done: set[str] = set()
        for name in self.nodes:
            path, walks = [name], [iter(after[name])]
            while walks and name not in done:
                following = next(walks[-1], None)
                if following is None:
                    walks.pop()
                    if path:
                        done.add(path.pop())
                elif following in path:
                    yield (*path[path.index(following) :], following)
                    done.update(path)
                    break
                elif following not in done:
                    path.append(following)
                    walks.append(iter(after[following]))


def _cycle_problem(path: tuple[str, ...]) -> GraphProblem:
    message = f"these nodes wait for each other: {' -> '.join(path)}"
    return GraphProblem(place="edges", code="cycle", message=message, path=path)
