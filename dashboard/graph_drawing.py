"""Where the nodes and edges of a graph stand on its page: layers from left to right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from loops.core.graph import EdgeKind
from loops.models import GraphEdge, GraphNode

WIDTH, HEIGHT = 196, 92
ACROSS, DOWN, EDGE = 84, 22, 12
LANE, PORTS, TIP = 20, 18, 7
"""Height of a line that passes between boxes, distance of two lines at one box, an arrow's tip."""
LETTER, LETTERS_HIGH = 6, 13


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
    heights = [sum(map(_height, column)) + DOWN * (len(column) - 1) for column in columns]
    tallest = max(heights, default=0)
    tops: dict[Stop, tuple[int, int]] = {}
    for at, column in enumerate(columns):
        y = EDGE + (tallest - heights[at]) // 2
        for stop in column:
            tops[stop] = (EDGE + at * (WIDTH + ACROSS), y)
            y += _height(stop) + DOWN
    by_name = {node.name: node for node in nodes}
    places = [
        Place(node=by_name[stop], x=x, y=y, facts=facts[stop])
        for stop, (x, y) in tops.items()
        if isinstance(stop, str)
    ]
    return Drawing(
        width=2 * EDGE + len(columns) * (WIDTH + ACROSS) - ACROSS,
        height=2 * EDGE + tallest + LETTERS_HIGH,
        places=places,
        lines=_apart(_lines(shown, columns, tops)),
    )


Stop = str | tuple[int, int]
"""What a line goes through: a node by its name, or its own lane (line, column) between boxes."""
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


def _columns(nodes: Sequence[GraphNode], shown: Shown) -> list[list[Stop]]:
    """The boxes of each column and the lanes of lines that pass it, so that no line is hidden."""
    depth = _depths(nodes, shown)
    columns: list[list[Stop]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in nodes:
        columns[depth[node.name]].append(node.name)
    before: dict[Stop, list[Stop]] = defaultdict(list)
    for line, (source, target, _) in enumerate(shown):
        passed = [(line, at) for at in range(depth[source] + 1, depth[target])]
        for lane in passed:
            columns[lane[1]].append(lane)
        stops: list[Stop] = [source, *passed, target]
        for one, following in pairwise(stops):
            before[following].append(one)
    rows: dict[Stop, float] = {}
    for column in columns:
        # Beside what they wait for: fewer lines cross.
        column.sort(key=lambda stop: _middle(before[stop], rows))
        rows |= {stop: at - (len(column) - 1) / 2 for at, stop in enumerate(column)}
    return columns


def _depths(nodes: Sequence[GraphNode], shown: Shown) -> dict[str, int]:
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
    return depth


def _middle(stops: list[Stop], rows: dict[Stop, float]) -> float:
    return sum(rows[stop] for stop in stops) / len(stops) if stops else 0.0


def _height(stop: Stop) -> int:
    return HEIGHT if isinstance(stop, str) else LANE


def _lines(
    shown: Shown, columns: list[list[Stop]], tops: dict[Stop, tuple[int, int]]
) -> list[Line]:
    """Each line through its lanes; lines at the same side of a box keep apart."""
    lanes = {stop for column in columns for stop in column if not isinstance(stop, str)}
    stops: list[list[Stop]] = []
    for line, (source, target, _) in enumerate(shown):
        own = sorted(stop for stop in lanes if stop[0] == line)
        stops.append([source, *own, target])
    leave = _ports([(way[0], way[1], at) for at, way in enumerate(stops)], tops)
    arrive = _ports([(way[-1], way[-2], at) for at, way in enumerate(stops)], tops)
    found = []
    for at, ((source, target, kind), way) in enumerate(zip(shown, stops, strict=True)):
        x, y = tops[source][0] + WIDTH, leave[at]
        path, label = f"M{x} {y}", None
        for stop in way[1:]:
            left, top = tops[stop]
            end = arrive[at] if stop == target else top + LANE // 2
            tip = TIP if stop == target else 0
            path += f"C{x + ACROSS // 2} {y} {left - ACROSS // 2} {end} {left - tip} {end}"
            label = label or ((x + left) // 2, (y + end) // 2 - 6)
            x, y = left, end
            if stop != target:
                x += WIDTH
                path += f"H{x}"
        label_x, label_y = label or (x, y)
        title = f"{source} to {target}: {kind}"
        found.append(Line(path=path, kind=kind, title=title, x=label_x, y=label_y))
    return found


def _ports(ends: list[tuple[Stop, Stop, int]], tops: dict[Stop, tuple[int, int]]) -> dict[int, int]:
    """Where each line meets its box: in the order of where it comes from or goes to."""
    at_box: dict[Stop, list[tuple[int, int]]] = defaultdict(list)
    for box, other, line in ends:
        at_box[box].append((tops[other][1] + _height(other) // 2, line))
    found: dict[int, int] = {}
    for box, lines in at_box.items():
        step = min(PORTS, (HEIGHT - PORTS) // len(lines))
        for at, (_, line) in enumerate(sorted(lines)):
            offset = round((at - (len(lines) - 1) / 2) * step)
            found[line] = tops[box][1] + HEIGHT // 2 + offset
    return found


def _apart(lines: list[Line]) -> list[Line]:
    """The same with every written kind below the ones that it would cover."""
    done: list[Line] = []
    for line in sorted(lines, key=lambda one: (one.x, one.y)):
        y = line.y
        if line.kind != EdgeKind.DEPENDENCY:
            for other in done:
                if _beside(line, other) and abs(y - other.y) < LETTERS_HIGH:
                    y = other.y + LETTERS_HIGH
        done.append(replace(line, y=y))
    return done


def _beside(line: Line, other: Line) -> bool:
    letters = len(line.kind) + len(other.kind)
    return other.kind != EdgeKind.DEPENDENCY and abs(line.x - other.x) < letters * LETTER / 2
