"""What was asked for: projects, agent profiles and tasks."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q


class Project(models.Model):
    """A tenant. `max_running` caps how many of its attempts run at once.

    The daily caps hold for each calendar day of `time_zone`; None is no cap.
    """

    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=200)
    max_running = models.PositiveIntegerField(default=16)
    weight = models.PositiveSmallIntegerField(
        default=1, db_default=1, validators=[MinValueValidator(1)]
    )
    """Its share of the pool while projects compete: 3 gets three times the slots of 1."""
    credit = models.PositiveIntegerField(default=0, db_default=0)
    """How many of its next admissions go before those of projects without credit."""
    away_since = models.PositiveBigIntegerField(null=True, default=0, db_default=0)
    """How many admissions there had been when it was seen without work; None while it has some,
    0 before it ever had any."""
    daily_tokens = models.PositiveBigIntegerField(null=True)
    daily_cost_microusd = models.PositiveBigIntegerField(null=True)
    time_zone = models.CharField(max_length=64, default="UTC", db_default="UTC")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(weight__gte=1), name="project_weight_positive")
        ]

    def __str__(self) -> str:
        return self.name


class Lane(models.Model):
    """Runs of one project that need the same agents: what holds up one of them holds up all.

    The dispatcher looks at lanes and their first runs, so a long queue costs it nothing.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE)
    agents = models.TextField(blank=True)
    """Names of agent profiles, sorted, with commas between them."""
    admissions = models.PositiveBigIntegerField(default=0, db_default=0)
    """How often a run of it was admitted."""
    turn = models.FloatField(default=0, db_default=0)
    """Admissions per weight, so that projects that hold as much as each other take turns."""
    served = models.PositiveBigIntegerField(default=0, db_default=0)
    """The number of its last admission among those of all lanes."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "agents"], name="lane_unique")]

    def __str__(self) -> str:
        return f"{self.project_id}: {self.agents}"

    @property
    def names(self) -> list[str]:
        """The agent profiles that its runs need."""
        return self.agents.split(",") if self.agents else []


class AgentProfile(models.Model):
    """A named agent: provider, its configuration, prices, and how many calls run at once.

    Secrets never stand here: a provider that needs a key reads it from the environment.
    """

    name = models.SlugField(unique=True)
    provider = models.CharField(max_length=40)
    config = models.JSONField(default=dict)
    input_usd_per_mtok = models.DecimalField(max_digits=12, decimal_places=6, null=True)
    output_usd_per_mtok = models.DecimalField(max_digits=12, decimal_places=6, null=True)
    strikes = models.PositiveIntegerField(default=0, db_default=0)
    """How often in a row its provider said that it is overloaded."""
    resting_until = models.DateTimeField(null=True)
    """No run that needs it is admitted before this; set after too many strikes."""
    last_overload = models.TextField(blank=True, default="", db_default="")
    """What the provider said at the last strike."""
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
