"""What is paused or stopped now, and who asked for it."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from loops.models.run import Run
from loops.models.task import Project

EVERYTHING = "all"
SWITCH = "switch"


class Hold(models.Model):
    """Keeps new attempts from starting: of a run, of a project, of everything.

    The row of the kill switch also refuses every call of the attempts that run already.
    """

    target = models.CharField(max_length=40, primary_key=True)
    """`run:7`, `project:3`, `all` or `switch`."""
    run = models.ForeignKey(Run, null=True, on_delete=models.CASCADE, related_name="+")
    project = models.ForeignKey(Project, null=True, on_delete=models.CASCADE, related_name="+")
    request_id = models.CharField(max_length=300)
    """Of the newest request to hold it: whoever lifts a hold may name the one that was seen."""
    actor = models.CharField(max_length=150)
    why = models.TextField(blank=True)
    created_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"{self.target} is held by {self.actor}"


class HoldVerb(models.TextChoices):
    """What was asked."""

    HOLD = "hold"
    LIFT = "lift"


class HoldRequest(models.Model):
    """One request to hold or to lift: the record, and what makes a repeat harmless."""

    request_id = models.CharField(max_length=300, unique=True)
    target = models.CharField(max_length=40)
    verb = models.CharField(max_length=4, choices=HoldVerb.choices)
    changed = models.BooleanField()
    """False: there was nothing to lift, or another hold than the one that was named."""
    actor = models.CharField(max_length=150)
    why = models.TextField(blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [models.Index(fields=["target", "-id"])]

    def __str__(self) -> str:
        return f"{self.actor} {self.words}"

    @property
    def words(self) -> str:
        """What was asked, for people."""
        holds = self.verb == HoldVerb.HOLD
        if self.target == SWITCH:
            return "stopped everything" if holds else "released the kill switch"
        what = "everything" if self.target == EVERYTHING else self.target.replace(":", " ")
        return f"{'paused' if holds else 'resumed'} {what}"
