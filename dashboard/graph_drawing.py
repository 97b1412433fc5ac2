"""Where the nodes and edges of a graph stand on its page: layers from left to right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loops.core.graph import EdgeKind
from loops.models import GraphEdge, GraphNode

WIDTH, HEIGHT = 196, 92
ACROSS, DOWN, EDGE = 66, 22, 12


@dataclass(frozen=True, kw_only=True)
class Place:
    """One node's box."""

    node: GraphNode
    x: int
    y: int
    facts: Any = None
    """What the page says of it."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One edge, from the right side of its source to the left side of its target."""

    path: str
    kind: str
    title: str
    x: int
    y: int
    """Where its kind is written."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Everything with its coordinates."""

    width: int
    height: int
    places: Sequence[Place]
    lines: Sequence[Line]
    box: tuple[int, int] = (WIDTH, HEIGHT)


def draw(
    nodes: Sequence[GraphNode],
    edges: Sequence[GraphEdge],
    governor: str,
    facts: Mapping[str, Any],
) -> Drawing:
    """Every node one column right of the last that it waits for; the governor right of all."""
    shown = [(edge.source.name, edge.target.name, edge.kind) for edge in edges]
    shown += _to_governor(nodes, shown, governor)
    columns = _columns(nodes, shown)
    tallest = max((len(column) for column in columns), default=0)
    places: dict[str, Place] = {}
    for at, column in enumerate(columns):
        top = (tallest - len(column)) * (HEIGHT + DOWN) // 2
        for row, node in enumerate(column):
            x = EDGE + at * (WIDTH + ACROSS)
            y = EDGE + top + row * (HEIGHT + DOWN)
            places[node.name] = Place(node=node, x=x, y=y, facts=facts[node.name])
    return Drawing(
        width=2 * EDGE + len(columns) * (WIDTH + ACROSS) - ACROSS,
        height=2 * EDGE + tallest * (HEIGHT + DOWN) - DOWN,
        places=list(places.values()),
        lines=[_line(places[source], places[target], kind) for source, target, kind in shown],
    )


Shown = list[tuple[str, str, str]]


def _to_governor(nodes: Sequence[GraphNode], shown: Shown, governor: str) -> Shown:
    """The governor waits for all: lines from those that nothing else waits for."""
    if not governor:
        return []
    followed = {source for source, _, _ in shown}
    return [
        (node.name, governor, EdgeKind.APPROVAL.value)
        for node in nodes
        if node.name not in followed and node.name != governor
    ]


def _columns(nodes: Sequence[GraphNode], shown: Shown) -> list[list[GraphNode]]:
    before: dict[str, list[str]] = {node.name: [] for node in nodes}
    for source, target, _ in shown:
        before[target].append(source)
    depth: dict[str, int] = {}

    def deep(name: str) -> int:
        if name not in depth:
            depth[name] = 1 + max((deep(one) for one in before[name]), default=-1)
        return depth[name]

    for node in nodes:
        deep(node.name)
    columns: list[list[GraphNode]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    rows: dict[str, float] = {}
    for at, column in enumerate(columns):
        column += [node for node in nodes if depth[node.name] == at]
        # Beside what they wait for: fewer lines cross.
        column.sort(key=lambda node: _middle(before[node.name], rows))
        rows |= {node.name: float(row) for row, node in enumerate(column)}
    return columns


def _middle(names: list[str], rows: dict[str, float]) -> float:
    return sum(rows[name] for name in names) / len(names) if names else 0.0


def _line(source: Place, target: Place, kind: str) -> Line:
    x1, y1 = source.x + WIDTH, source.y + HEIGHT // 2
    x2, y2 = target.x, target.y + HEIGHT // 2
    bend = max(ACROSS // 2, (x2 - x1) // 3)
    # A long line passes behind boxes: its kind is written before the first of them.
    x, y = ((x1 + x2) // 2, (y1 + y2) // 2) if x2 - x1 == ACROSS else (x1 + ACROSS // 2, y1)
    return Line(
        path=f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2 - 7} {y2}",
        kind=kind,
        title=f"{source.node.name} to {target.node.name}: {kind}",
        x=x,
        y=y - 6,
    )
