"""The human gate queue."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from loops.core.lifecycle import SENTENCES, StopReason
from loops.core.review import Strategy
from loops.models.run import Run


class EscalationStatus(models.TextChoices):
    """Where an item stands."""

    OPEN = "open"
    DECIDED = "decided"
    EXPIRED = "expired"  # the run's deadline passed and nobody had decided
    WITHDRAWN = "withdrawn"  # the run was cancelled, or nobody needs the answer any more


class Decision(models.TextChoices):
    """What a person may say."""

    CONTINUE = "continue", "Continue with guidance"
    REFACTOR = "refactor", "Undo this attempt and start over"
    ACCEPT = "accept", "Accept as it is"
    CLOSE = "close", "Close without result"
    APPROVE = "approve", "Approve"
    REJECT = "reject", "Reject"
    CHANGE_GOAL = "change_goal", "Change the goal"
    ANSWER = "answer", "Answer"
    HAPPENED = "happened", "It happened"
    NOT_HAPPENED = "not_happened", "It did not happen"


class Escalation(models.Model):
    """One item: why, the evidence packet, its digest, and the decisions allowed."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="escalations")
    attempt_no = models.PositiveIntegerField()
    cause = models.CharField(max_length=40)
    reason = models.TextField()
    proposal = models.TextField(blank=True)
    required_authority = models.CharField(max_length=60, blank=True)
    packet = models.JSONField()
    """What is shown: reasons, artifact or diff, check output, spend. The digest is its."""
    digest = models.CharField(max_length=64)
    allowed = models.JSONField()
    """The `Decision` values that this item admits."""
    model_said = models.CharField(max_length=40, blank=True)
    """How the loop itself judged the attempt: the label beside what the person decides."""
    status = models.CharField(
        max_length=10, choices=EscalationStatus.choices, default=EscalationStatus.OPEN
    )
    decision = models.CharField(max_length=16, choices=Decision.choices, blank=True)
    guidance = models.TextField(blank=True)
    granted_iterations = models.PositiveIntegerField(default=0)
    decided_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    decided_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["run", "cause"],
                condition=Q(status=EscalationStatus.OPEN),
                name="escalation_one_open_per_cause",
            )
        ]
        indexes = [
            models.Index(
                fields=["id"], name="escalation_open", condition=Q(status=EscalationStatus.OPEN)
            )
        ]

    def __str__(self) -> str:
        return f"{self.cause} of {self.run}"

    @property
    def overrides(self) -> bool:
        """Whether the person decided otherwise than the model said (S4-14)."""
        said, decision = self.model_said, Decision(self.decision) if self.decision else None
        match decision:
            case Decision.CONTINUE | Decision.ACCEPT:
                return said in (Strategy.REFACTOR, Strategy.ABORT)
            case Decision.REFACTOR:
                return said != Strategy.REFACTOR
            case _:
                return False

    @property
    def heading(self) -> str:
        """The cause in a sentence for people; that of used-up iterations has their number."""
        used_up = self.cause == StopReason.ITERATIONS
        return self.reason if used_up and self.reason else SENTENCES[StopReason(self.cause)]

    @property
    def detail(self) -> str:
        """What the reason adds to the heading."""
        return self.reason.removeprefix(self.heading).strip()
