"""A project's day: what it may spend between two midnights of its own time zone."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from loops.models.budget import Budget
from loops.models.task import Project


class ProjectDay(Budget):
    """One local calendar day of a project, from `starts_at` until before `ends_at`.

    A call stays booked on the day that it was reserved on, also when it ends after midnight.
    """

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="days")
    date = models.DateField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    """23 to 25 hours later, where clocks change."""
    closed = models.BooleanField(default=False, db_default=False)
    """A call did not fit beside what is used, or the cap was lowered below that: nothing more is
    admitted until the next day or a grant."""

    class Meta(Budget.Meta):
        constraints = [
            *Budget.Meta.constraints,
            models.UniqueConstraint(fields=["project", "date"], name="projectday_unique"),
            models.CheckConstraint(
                condition=Q(ends_at__gte=F("starts_at")), name="projectday_ends_after_start"
            ),
        ]
        indexes = [models.Index(fields=["ends_at"], name="projectday_current")]

    def __str__(self) -> str:
        return f"{self.project} on {self.date}"

    @property
    def used_up(self) -> bool:
        """Whether nothing more is admitted; `loops.store.days.used_up` says the same in SQL."""
        spent = (
            (self.limit_tokens, self.used.tokens),
            (self.limit_cost_microusd, self.used.cost_microusd),
        )
        return self.closed or any(cap is not None and used >= cap for cap, used in spent)


class DayGrant(models.Model):
    """What a person added to one day of a project. Rows are never edited."""

    day = models.ForeignKey(ProjectDay, on_delete=models.CASCADE, related_name="grants")
    tokens = models.PositiveBigIntegerField(default=0)
    cost_microusd = models.PositiveBigIntegerField(default=0)
    granted_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    actor = models.CharField(max_length=150)
    """Who, in words: at the command line there is no user."""
    created_at = models.DateTimeField(auto_now_add=True)
