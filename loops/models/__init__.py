"""What is stored. Only `loops.store` writes runs, only `loops.gates` writes escalations."""

from loops.models.access import ApiToken, IdempotencyKey, LoginLink
from loops.models.artifact import Artifact
from loops.models.budget import Budget
from loops.models.day import DayGrant, ProjectDay
from loops.models.event import Event, Outbox, WorkerPresence
from loops.models.gate import Decision, Escalation, EscalationStatus
from loops.models.graph import Graph, GraphEdge, GraphEvent, GraphGrant, GraphNode, GraphStatus
from loops.models.hold import EVERYTHING, SWITCH, Hold, HoldRequest, HoldVerb
from loops.models.run import (
    Attempt,
    AttemptStatus,
    LimitGrant,
    Reservation,
    ReservationState,
    Run,
    Step,
    StepKind,
    StepStatus,
)
from loops.models.task import AgentProfile, Lane, OnLimit, Project, Task

__all__ = [
    "EVERYTHING",
    "SWITCH",
    "AgentProfile",
    "ApiToken",
    "Artifact",
    "Attempt",
    "AttemptStatus",
    "Budget",
    "DayGrant",
    "Decision",
    "Escalation",
    "EscalationStatus",
    "Event",
    "Graph",
    "GraphEdge",
    "GraphEvent",
    "GraphGrant",
    "GraphNode",
    "GraphStatus",
    "Hold",
    "HoldRequest",
    "HoldVerb",
    "IdempotencyKey",
    "Lane",
    "LimitGrant",
    "LoginLink",
    "OnLimit",
    "Outbox",
    "Project",
    "ProjectDay",
    "Reservation",
    "ReservationState",
    "Run",
    "Step",
    "StepKind",
    "StepStatus",
    "Task",
    "WorkerPresence",
]
