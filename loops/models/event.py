"""What happened, what must still be published, and who works."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from loops.models.run import Run


class Event(models.Model):
    """One change, written in its own transaction: timeline, audit trail and live feed at once."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="events")
    seq = models.PositiveBigIntegerField()
    """1, 2, 3, ... within the run, in the order of the commits."""
    kind = models.CharField(max_length=40)
    text = models.TextField()
    data = models.JSONField(default=dict)
    actor = models.CharField(max_length=150)
    """A user name, a worker's name, or `system`."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "seq"], name="event_seq_unique")]

    def __str__(self) -> str:
        return self.text


class Outbox(models.Model):
    """A wake-up that must reach the broker. The dispatcher publishes it after the commit."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="wakeups")
    attempt_no = models.PositiveIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)
    tried_at = models.DateTimeField(null=True)
    sent_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["id"], name="outbox_unsent", condition=Q(sent_at__isnull=True))
        ]


class WorkerPresence(models.Model):
    """A worker or tender that says it is alive."""

    name = models.CharField(max_length=120, primary_key=True)
    kind = models.CharField(max_length=12, choices=[("worker", "worker"), ("tender", "tender")])
    sandbox = models.TextField(blank=True)
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    drained_at = models.DateTimeField(null=True)
    """Since when it is to take nothing new; what it works on goes on."""
