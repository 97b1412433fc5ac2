"""Tasks with dependencies between them, and one budget for all."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from loops import clock
from loops.core.graph import EdgeKind, GraphOutcome, Mode, Signal
from loops.models.budget import Budget
from loops.models.task import Project, Task


def modes() -> list[tuple[str, str]]:
    """For the column."""
    return [(mode.value, mode.value) for mode in Mode]


def outcomes() -> list[tuple[str, str]]:
    """For the column."""
    return [(outcome.value, outcome.value.replace("_", " ")) for outcome in GraphOutcome]


def signals() -> list[tuple[str, str]]:
    """For the column."""
    return [(signal.value, signal.value.replace("_", " ")) for signal in Signal]


def edge_kinds() -> list[tuple[str, str]]:
    """For the column."""
    return [(kind.value, kind.value) for kind in EdgeKind]


class GraphStatus(models.TextChoices):
    """Where a graph stands."""

    RUNNING = "running", "Running"
    AT_GATE = "at_gate", "At the gate"
    ENDED = "ended", "Ended"


class Graph(Budget):
    """Its row is the authority on its status and on the budget that its tasks share.

    `aim` never changes: a change of the goal makes a successor.
    """

    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    title = models.CharField(max_length=200)
    aim = models.TextField()
    mode = models.CharField(max_length=10, choices=modes)
    governor = models.CharField(max_length=40, blank=True)
    """The node that a person stands for."""
    status = models.CharField(
        max_length=10, choices=GraphStatus.choices, default=GraphStatus.RUNNING
    )
    outcome = models.CharField(max_length=12, choices=outcomes, blank=True)
    reason = models.TextField(blank=True)
    cancel_requested = models.BooleanField(default=False)
    deadline_at = models.DateTimeField(null=True)
    """Everything included: no run of its tasks has a later one."""
    version = models.PositiveBigIntegerField(default=0)
    event_seq = models.PositiveBigIntegerField(default=0)

    successor_of = models.OneToOneField(
        "self", null=True, on_delete=models.PROTECT, related_name="successor"
    )
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    ended_at = models.DateTimeField(null=True)

    class Meta(Budget.Meta):
        constraints = [
            *Budget.Meta.constraints,
            models.CheckConstraint(
                condition=Q(status=GraphStatus.ENDED) & ~Q(outcome="")
                | ~Q(status=GraphStatus.ENDED) & Q(outcome=""),
                name="graph_outcome_at_its_end",
            ),
        ]
        indexes = [
            models.Index(fields=["id"], name="graph_live", condition=~Q(status=GraphStatus.ENDED)),
            models.Index(fields=["project", "-id"]),
        ]

    def __str__(self) -> str:
        return f"{self.key} {self.title}"

    @property
    def key(self) -> str:
        """The short name that people use."""
        return f"G-{self.pk}"

    @property
    def is_over(self) -> bool:
        """Whether nothing can follow."""
        return self.status == GraphStatus.ENDED

    @property
    def is_late(self) -> bool:
        """Whether its deadline has passed."""
        return self.deadline_at is not None and self.deadline_at <= clock.now()


class GraphGrant(models.Model):
    """So much more of what its tasks share, given by a person.

    Rows are never edited; the graph's own row holds the sums.
    """

    graph = models.ForeignKey(Graph, on_delete=models.CASCADE, related_name="grants")
    model_calls = models.PositiveIntegerField(default=0)
    tool_calls = models.PositiveIntegerField(default=0)
    tokens = models.PositiveBigIntegerField(default=0)
    cost_microusd = models.PositiveBigIntegerField(default=0)
    granted_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)


class GraphNode(models.Model):
    """One task of a graph before and after it started, or the place of its governor."""

    graph = models.ForeignKey(Graph, on_delete=models.CASCADE, related_name="nodes")
    name = models.CharField(max_length=40)
    position = models.PositiveIntegerField()
    document = models.JSONField()
    """The task as it was asked for, placeholders unfilled; a title alone for the governor."""
    task = models.OneToOneField(
        Task, null=True, on_delete=models.PROTECT, related_name="graph_node"
    )
    signal = models.CharField(max_length=16, choices=signals, blank=True)
    """Empty until its task has ended."""
    reason = models.TextField(blank=True)
    output = models.JSONField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["graph", "name"], name="graph_node_name_unique")
        ]
        ordering = ["position"]

    def __str__(self) -> str:
        return f"{self.name} of {self.graph}"


class GraphEdge(models.Model):
    """`target` waits for `source`."""

    graph = models.ForeignKey(Graph, on_delete=models.CASCADE, related_name="edges")
    source = models.ForeignKey(GraphNode, on_delete=models.CASCADE, related_name="out_edges")
    target = models.ForeignKey(GraphNode, on_delete=models.CASCADE, related_name="in_edges")
    kind = models.CharField(max_length=10, choices=edge_kinds)

    class Meta:
        ordering = ["id"]


class GraphEvent(models.Model):
    """One change of a graph, written in its own transaction."""

    graph = models.ForeignKey(Graph, on_delete=models.CASCADE, related_name="events")
    seq = models.PositiveBigIntegerField()
    kind = models.CharField(max_length=40)
    text = models.TextField()
    actor = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["graph", "seq"], name="graph_event_seq_unique")
        ]

    def __str__(self) -> str:
        return self.text
