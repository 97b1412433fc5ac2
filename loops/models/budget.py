"""What may be spent, is spent and may still be spent: the same columns for run, graph and day."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from loops.core.limits import Amount, Limits

COUNTED = ("model_calls", "tool_calls", "tokens", "cost_microusd")


def _within(axis: str) -> models.CheckConstraint:
    return models.CheckConstraint(
        condition=Q(**{f"limit_{axis}__isnull": True})
        | Q(**{f"limit_{axis}__gte": F(f"used_{axis}") + F(f"reserved_{axis}")}),
        name=f"%(class)s_{axis}_within_limit",
    )


class Budget(models.Model):
    """A row that reservations are booked on. Only `loops/statements.sql` books."""

    limit_model_calls = models.PositiveIntegerField(null=True)
    limit_tool_calls = models.PositiveIntegerField(null=True)
    limit_tokens = models.PositiveBigIntegerField(null=True)
    limit_cost_microusd = models.PositiveBigIntegerField(null=True)
    used_model_calls = models.PositiveIntegerField(default=0)
    used_tool_calls = models.PositiveIntegerField(default=0)
    used_tokens = models.PositiveBigIntegerField(default=0)
    used_cost_microusd = models.PositiveBigIntegerField(default=0)
    reserved_model_calls = models.PositiveIntegerField(default=0)
    reserved_tool_calls = models.PositiveIntegerField(default=0)
    reserved_tokens = models.PositiveBigIntegerField(default=0)
    reserved_cost_microusd = models.PositiveBigIntegerField(default=0)
    overrun_tokens = models.PositiveBigIntegerField(default=0)
    """What a provider used above its own worst case. Kept apart so that the check can hold."""
    overrun_cost_microusd = models.PositiveBigIntegerField(default=0)

    class Meta:
        abstract = True
        constraints = [_within(axis) for axis in COUNTED]

    @property
    def limits(self) -> Limits:
        """The caps that hold now; iterations are capped on a run alone."""
        return Limits(iterations=1, **{axis: getattr(self, f"limit_{axis}") for axis in COUNTED})

    @property
    def used(self) -> Amount:
        """What is surely spent."""
        return Amount(
            model_calls=self.used_model_calls,
            tool_calls=self.used_tool_calls,
            tokens=self.used_tokens + self.overrun_tokens,
            cost_microusd=self.used_cost_microusd + self.overrun_cost_microusd,
        )

    @property
    def reserved(self) -> Amount:
        """What calls in flight may still spend."""
        return Amount(**{axis: getattr(self, f"reserved_{axis}") for axis in COUNTED})
