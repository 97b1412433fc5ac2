"""Reads a graph from one document, as API and command line get it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dashboard.api.bodies import AskedBody, Body, LimitsBody, Money, Whole, read_most
from loops.core.graph import Edge, EdgeKind, Mode, Signal
from loops.core.text import clean
from loops.store.submit import Problem
from workers.graph_intake import GraphRequest, NodeRequest


class SharedCapsBody(Body):
    """What all tasks of the graph may spend together."""

    model_calls: Whole | None = None
    tool_calls: Whole | None = None
    tokens: Whole | None = None
    cost: Money | None = None


class SharedLimitsBody(SharedCapsBody):
    """The same, and how long all of it may take."""

    deadline_seconds: Whole | None = None


class GrantBody(Body):
    """The shared limits from now on: each given one is raised to this."""

    limits: SharedCapsBody

    def as_caps(self) -> dict[str, int]:
        """The same in stored units."""
        return LimitsBody.model_validate(self.limits.model_dump(exclude_none=True)).as_limits()


class EdgeBody(Body):
    """One node waits for another."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    kind: Annotated[EdgeKind, Field(strict=False)] = EdgeKind.DEPENDENCY


class HeadBody(Body):
    """All of the document but its nodes."""

    title: str = ""
    aim: str = ""
    mode: Annotated[Mode, Field(strict=False)] = Mode.SERIAL
    governor: str = ""
    limits: SharedLimitsBody = Field(default_factory=SharedLimitsBody)
    edges: list[EdgeBody] = Field(default_factory=list)


class NodeSourceBody(Body):
    """Where the files come from: a repository, or what another node delivered."""

    repo: str = ""
    include_dirty: bool = False
    giver: str = Field(default="", alias="from")

    @model_validator(mode="after")
    def _one_of_two(self) -> NodeSourceBody:
        if bool(self.repo) == bool(self.giver):
            raise ValueError("give exactly one of repo and from")
        return self


class NodeBody(AskedBody):
    """One task of the graph."""

    source: NodeSourceBody | None = None
    on_fail: Literal["escalation", "soft_objection", "hard_veto"] = "escalation"

    def as_request(self, name: str) -> NodeRequest:
        """The same for the intake."""
        source = self.source or NodeSourceBody.model_construct()
        task = self.asked(repo=source.repo or None, include_dirty=source.include_dirty)
        return NodeRequest(
            name=name, task=task, source_from=source.giver, on_fail=Signal(self.on_fail)
        )


class GovernorBody(Body):
    """The place of the person who decides."""

    title: str = ""


def read_graph(document: Any) -> tuple[GraphRequest, list[Problem]]:
    """As much of the graph as can be read, and what kept the rest from it."""
    if not isinstance(document, dict):
        problem = Problem(field="", code="no_object", message="must be one object with nodes")
        return GraphRequest(title="", nodes=()), [problem]
    head, problems = read_most(
        HeadBody, {key: one for key, one in document.items() if key != "nodes"}
    )
    found = document.get("nodes", {})
    nodes = []
    if isinstance(found, dict):
        for name, body in found.items():
            # A name that is no text is refused with the characters that stand for what is wrong.
            node, wrong = _node(clean(str(name)), body, governor=head.governor)
            nodes.append(node)
            problems += wrong
    else:
        message = "must be an object: each task under its name"
        problems.append(Problem(field="nodes", code="no_object", message=message))
    shared = LimitsBody.model_validate(head.limits.model_dump(exclude_none=True))
    request = GraphRequest(
        title=head.title,
        aim=head.aim,
        mode=head.mode,
        governor=head.governor,
        edges=[Edge(source=e.source, target=e.target, kind=e.kind) for e in head.edges],
        limits=shared.as_limits(),
        nodes=nodes,
    )
    return request, problems


def _node(name: str, body: Any, *, governor: str) -> tuple[NodeRequest, list[Problem]]:
    if governor and name == governor:
        place, problems = read_most(GovernorBody, {} if body is None else body)
        node = NodeRequest(name=name, title=place.title)
    else:
        task, problems = read_most(NodeBody, body)
        node = task.as_request(name) if isinstance(body, dict) else NodeRequest(name=name)
    return node, [
        replace(p, field=f"nodes.{name}{'.' if p.field else ''}{p.field}") for p in problems
    ]


def document_name(field: str) -> str:
    """The name that a problem's field has in the document."""
    parts = {"local_aim": "aim", "cost_microusd": "cost"}
    return ".".join(parts.get(part, part) for part in field.split("."))
