"""The drawing of a graph: no line behind a box or on another, no word on another."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from dashboard.graph_drawing import HEIGHT, LETTER, LETTERS_HIGH, WIDTH, Drawing, draw
from loops.models import GraphEdge, GraphNode

_NUMBER = re.compile(r"-?[0-9]+")


def _drawn(names: str, edges: str, governor: str = "") -> Drawing:
    nodes = {name: GraphNode(name=name) for name in names.split()}
    lines = [re.split("[>:]", one) for one in edges.split()]
    found = [GraphEdge(source=nodes[a], target=nodes[b], kind=kind) for a, b, kind in lines]
    return draw(list(nodes.values()), found, governor, dict.fromkeys(nodes))


def _points(path: str) -> list[tuple[float, float]]:
    """Points of the path, close to each other."""
    found: list[tuple[float, float]] = []
    for letter, text in re.findall(r"([MCH])([^MCH]*)", path):
        n = [float(number) for number in _NUMBER.findall(text)]
        if letter == "M":
            found.append((n[0], n[1]))
            continue
        x, y = found[-1]
        c = n if letter == "C" else [x, y, n[0], y, n[0], y]
        for step in range(1, 41):
            t = step / 40
            a, b, d, e = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
            found.append(
                (a * x + b * c[0] + d * c[2] + e * c[4], a * y + b * c[1] + d * c[3] + e * c[5])
            )
    return found


GRAPHS = {
    "parallel": ("fix scan", "fix>scan:handoff fix>scan:data", ""),
    "past a box": ("fix scan notes", "fix>scan:handoff scan>notes:data fix>notes:data", ""),
    "long": ("a b c d", "a>b:data b>c:data c>d:data a>d:handoff a>c:veto b>d:data a>d:data", "d"),
    "fan": ("a b c d e f", "a>f:data b>f:data c>f:veto d>f:handoff e>f:data a>f:handoff", ""),
    "crossed": ("a b c d", "a>c:data a>d:veto b>c:handoff b>d:data", ""),
    "governed": ("a b c lead", "a>b:handoff a>b:data a>c:data", "lead"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_no_line_passes_behind_a_box_or_lies_on_another(name: str) -> None:
    drawing = _drawn(*GRAPHS[name])
    for line in drawing.lines:
        points = _points(line.path)
        for place in drawing.places:
            inside = [
                (x, y)
                for x, y in points
                if place.x < x < place.x + WIDTH and place.y < y < place.y + HEIGHT
            ]
            assert not inside, (line.title, place.node.name)
        assert all(0 <= x <= drawing.width and 0 <= y <= drawing.height for x, y in points)
    for one, other in combinations(drawing.lines, 2):
        assert len({*_points(one.path)} & {*_points(other.path)}) < 3, (one.title, other.title)


@pytest.mark.parametrize("name", GRAPHS)
def test_no_kind_is_written_on_another_or_on_a_box(name: str) -> None:
    drawing = _drawn(*GRAPHS[name])
    written = [line for line in drawing.lines if line.kind != "dependency"]
    for one, other in combinations(written, 2):
        wide = (len(one.kind) + len(other.kind)) * LETTER / 2
        far = abs(one.x - other.x) >= wide or abs(one.y - other.y) >= LETTERS_HIGH
        assert far, (one.title, other.title)
    for line in written:
        half = len(line.kind) * LETTER / 2
        for place in drawing.places:
            beside = line.x + half <= place.x or line.x - half >= place.x + WIDTH
            assert beside, (line.title, place.node.name)
        assert LETTERS_HIGH <= line.y <= drawing.height - 2
