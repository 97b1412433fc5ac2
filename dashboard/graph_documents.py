"""Graphs as the documents that people write: an example, and one that has run before."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import yaml

from dashboard.api.bodies import MICRO
from loops.core.graph import EdgeKind, Mode, Signal
from loops.models import Graph, GraphNode
from loops.store.graph_grants import first_limits

EXAMPLE = """\
# Two tasks side by side, one that reads what they found, and a person who decides.
title: Is it ready?
aim: Know whether this can be released.
mode: parallel            # every ready task starts; `serial` starts one at a time
governor: lead            # the node that a person stands for; without it nobody is asked
limits:
  tool_calls: 20          # shared by all tasks
  deadline_seconds: 3600  # for all of it, from now on
nodes:
  tests:                  # these tasks need no agent and no repository: they only count
    pattern: contract
    spec: {builder: retry_feature}
    limits: {iterations: 3}
  style:
    pattern: contract
    spec: {builder: retry_feature, arguments: '{"accept_up_to": 0}'}
    limits: {iterations: 1}
    on_limit: stop        # `gate` would ask a person first
    on_fail: soft_objection
  report:
    pattern: contract
    title: "Report: tests {{ nodes.tests.outcome }}"
    spec: {builder: retry_feature}
    limits: {iterations: 3}
  lead: {}
edges:
  - {from: tests, to: report, kind: data}
  - {from: style, to: report}
  - {from: report, to: lead, kind: approval}
"""


def document_of(graph: Graph) -> dict[str, Any]:
    """The document that would submit the graph again, with the limits that it began with."""
    found: dict[str, Any] = {"title": graph.title}
    if graph.aim != graph.title:
        found["aim"] = graph.aim
    if graph.mode != Mode.SERIAL:
        found["mode"] = graph.mode
    if graph.governor:
        found["governor"] = graph.governor
    if limits := _limits(first_limits(graph)):
        found["limits"] = limits
    found["nodes"] = {node.name: _node(graph, node) for node in graph.nodes.all()}
    edges = graph.edges.select_related("source", "target")
    if written := [_edge(edge.source.name, edge.target.name, edge.kind) for edge in edges]:
        found["edges"] = written
    return found


def as_yaml(document: dict[str, Any]) -> str:
    """The document as a person would write it."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Dumper(yaml.SafeDumper):
    """Long texts as blocks, and no aliases, which are not read."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Write everything out."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _edge(source: str, target: str, kind: str) -> dict[str, str]:
    ends = {"from": source, "to": target}
    return ends if kind == EdgeKind.DEPENDENCY else {**ends, "kind": kind}


def _node(graph: Graph, node: GraphNode) -> dict[str, Any]:
    if node.name == graph.governor:
        return {}
    asked = node.document["submission"]
    found = {
        "pattern": asked["pattern"],
        "title": "" if asked["title"] == f"{graph.title}: {node.name}" else asked["title"],
        "aim": asked["local_aim"],
        "spec": asked["spec"],
        "limits": _limits(asked["limits"]),
        "agents": asked["agents"],
        "on_limit": asked["on_limit"],
        "priority": asked["priority"],
        "source": _source(node),
    }
    on_fail = node.document["on_fail"]
    if on_fail != Signal.ESCALATION:
        found["on_fail"] = on_fail
    return {name: value for name, value in found.items() if value}


def _source(node: GraphNode) -> dict[str, Any]:
    if giver := node.document["source_from"]:
        return {"from": giver}
    stored = node.document["submission"]["source"]
    if not stored:
        return {}
    dirty = {"include_dirty": True} if "dirty_commit" in stored else {}
    return {"repo": stored["path"], **dirty}


def _limits(stored: dict[str, int | None]) -> dict[str, Any]:
    found: dict[str, Any] = {name: cap for name, cap in stored.items() if cap is not None}
    if "cost_microusd" in found:
        dollars = Decimal(found.pop("cost_microusd")) / MICRO
        found["cost"] = {"amount": f"{dollars:f}", "currency": "USD"}
    return found
