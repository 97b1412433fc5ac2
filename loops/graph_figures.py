"""The words of a graph as people see them: one source for pages, API and command line."""

from __future__ import annotations

from loops.core.graph import GraphOutcome, Signal
from loops.models import Graph, GraphNode, GraphStatus

_ENDS = {
    GraphOutcome.SUCCESS: ("Succeeded", "pass"),
    GraphOutcome.REJECTED: ("Rejected", "checks"),
    GraphOutcome.GOAL_CHANGED: ("Goal changed", "refactor"),
    GraphOutcome.HARD_VETOED: ("Vetoed", "checks"),
    GraphOutcome.ESCALATED: ("Escalated", "changes"),
    GraphOutcome.CANCELLED: ("Cancelled", "idle"),
    GraphOutcome.DEADLINE: ("Deadline passed", "changes"),
}
SIGNALS = {
    Signal.OK: ("Ok", "pass"),
    Signal.SOFT_OBJECTION: ("Objects", "changes"),
    Signal.HARD_VETO: ("Vetoes", "checks"),
    Signal.ESCALATION: ("Escalates", "gate"),
}


def effective_status(graph: Graph) -> tuple[GraphStatus, str]:
    """The status that is true now and its outcome: a deadline holds the moment it passes."""
    if not graph.is_over and graph.is_late:
        return GraphStatus.ENDED, GraphOutcome.DEADLINE
    return GraphStatus(graph.status), graph.outcome


def graph_words(graph: Graph) -> tuple[str, str]:
    """The status in a word or two, and its colour class."""
    status, outcome = effective_status(graph)
    if status is GraphStatus.ENDED:
        return _ENDS[GraphOutcome(outcome)]
    if graph.cancel_requested:
        return "Cancelling", "idle"
    if graph.status == GraphStatus.AT_GATE:
        return "Governor asked", "gate"
    return "Running", "run"


def graph_sentence(graph: Graph) -> str:
    """Why it is where it is, in one sentence; empty while it simply goes on."""
    if effective_status(graph)[0] is not GraphStatus(graph.status):
        return "The graph's deadline has passed."
    return graph.reason


def signal_words(node: GraphNode) -> tuple[str, str] | None:
    """What a node said to its graph; None while it has not, and when it is simply well."""
    if not node.signal or node.signal == Signal.OK:
        return None
    return SIGNALS[Signal(node.signal)]


def waiting_words(graph: Graph, node: GraphNode) -> tuple[str, str]:
    """Where a node stands that has no task."""
    if node.signal:
        return "Could not start", "checks"
    if node.name == graph.governor:
        return ("Not asked", "idle") if graph.is_over else ("Decides last", "idle")
    return ("Waits", "idle") if graph.status == GraphStatus.RUNNING else ("Skipped", "idle")
