"""What was asked for: projects, agent profiles and tasks."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models


class Project(models.Model):
    """A tenant. `max_running` caps how many of its attempts run at once.

    The daily caps hold for each calendar day of `time_zone`; None is no cap.
    """

    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=200)
    max_running = models.PositiveIntegerField(default=16)
    daily_tokens = models.PositiveBigIntegerField(null=True)
    daily_cost_microusd = models.PositiveBigIntegerField(null=True)
    time_zone = models.CharField(max_length=64, default="UTC", db_default="UTC")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class AgentProfile(models.Model):
    """A named agent: provider, its configuration, prices, and how many calls run at once.

    Secrets never stand here: a provider that needs a key reads it from the environment.
    """

    name = models.SlugField(unique=True)
    provider = models.CharField(max_length=40)
    config = models.JSONField(default=dict)
    input_usd_per_mtok = models.DecimalField(max_digits=12, decimal_places=6, null=True)
    output_usd_per_mtok = models.DecimalField(max_digits=12, decimal_places=6, null=True)
    max_running = models.PositiveIntegerField(default=16)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class OnLimit(models.TextChoices):
    """What becomes of a run when a limit is reached."""

    GATE = "gate", "Ask a person"
    STOP = "stop", "Stop"


class Task(models.Model):
    """What was asked for. Never changed after submission; `local_aim` in particular (S1-5)."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    pattern = models.CharField(max_length=60)
    title = models.CharField(max_length=200)
    local_aim = models.TextField()
    spec = models.JSONField()
    agents = models.JSONField(default=dict)
    """Role to the name of an agent profile."""
    limits = models.JSONField()
    on_limit = models.CharField(max_length=8, choices=OnLimit.choices)
    priority = models.SmallIntegerField(default=0)
    """Higher goes first inside the project."""
    graph = models.ForeignKey(
        "loops.Graph", null=True, on_delete=models.PROTECT, related_name="tasks"
    )
    source = models.JSONField(null=True)
    """Where the workspace comes from: path, commit, branch, what was left out."""
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["project", "-id"])]

    def __str__(self) -> str:
        return f"{self.key} {self.title}"

    @property
    def key(self) -> str:
        """The short name that people use."""
        return f"T-{self.pk}"

    @property
    def spec_dict(self) -> dict[str, Any]:
        """The pattern's input as it was sent."""
        return dict(self.spec)
