"""One bounded execution of a task: run, limit grants, attempts, steps and the ledger."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from loops.core.lifecycle import SENTENCES, TERMINAL, RunStatus, StopReason
from loops.core.limits import Amount, Limits
from loops.models.budget import COUNTED, Budget
from loops.models.task import Lane, Task


def _statuses() -> list[tuple[str, str]]:
    return [(status.value, status.value.replace("_", " ")) for status in RunStatus]


class Run(Budget):
    """One bounded execution of a task. Its row is the authority on status and budget."""

    task = models.ForeignKey(Task, on_delete=models.PROTECT, related_name="runs")
    graph = models.ForeignKey(
        "loops.Graph", null=True, on_delete=models.PROTECT, related_name="runs"
    )
    """The task's, here again: each reservation must know it without a join."""
    lane = models.ForeignKey(Lane, null=True, on_delete=models.PROTECT, db_index=False)
    """Where it queues; empty only until the sweeper has seen a run of an older version."""
    priority = models.SmallIntegerField(default=0, db_default=0)
    """The task's, here again: the dispatcher reads the first of a lane from an index."""
    number = models.PositiveIntegerField(default=1)
    status = models.CharField(max_length=20, choices=_statuses, default=RunStatus.QUEUED)
    stop_reason = models.CharField(max_length=40, blank=True)
    """A `StopReason`, or empty while nothing stopped it."""
    reason = models.TextField(blank=True)
    """The sentence for people."""
    version = models.PositiveBigIntegerField(default=0)
    event_seq = models.PositiveBigIntegerField(default=0)

    attempt_no = models.PositiveIntegerField(default=1)
    """The number of the attempt that runs or comes next."""
    iterations = models.PositiveIntegerField(default=0)
    """Attempts that counted against the limit."""
    errors = models.PositiveIntegerField(default=0)
    active_ms = models.PositiveBigIntegerField(default=0)

    lease_token = models.PositiveBigIntegerField(default=0)
    """Grows with every claim: a worker with an older token can change nothing."""
    lease_owner = models.CharField(max_length=120, blank=True)
    lease_expires_at = models.DateTimeField(null=True)
    attempt_deadline_at = models.DateTimeField(null=True)
    next_at = models.DateTimeField()
    admitted_at = models.DateTimeField(null=True)
    """When its slots were granted and its wake-up was written; empty while it waits for them."""
    deadline_at = models.DateTimeField(null=True)
    cancel_requested = models.BooleanField(default=False)

    limit_iterations = models.PositiveIntegerField()
    limit_errors = models.PositiveIntegerField()
    limit_active_seconds = models.PositiveIntegerField(null=True)

    state = models.JSONField(null=True)
    """The pattern's state after the last judged attempt."""
    feedback = models.TextField(null=True)
    result = models.JSONField(null=True)
    base_commit = models.CharField(max_length=64, blank=True)
    tree = models.TextField(blank=True)
    """Snapshot of the workspace after the last judged attempt, in its stored form."""
    base_pack = models.CharField(max_length=64, blank=True)
    """Artifact with the base commit and its history; empty when that is too large to travel."""

    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    updated_at = models.DateTimeField(auto_now=True)

    day_used_up = False
    """Whether its project's day admits nothing more, where `loops.store.days.marked` read it."""

    class Meta(Budget.Meta):
        constraints = [
            *Budget.Meta.constraints,
            models.UniqueConstraint(fields=["task", "number"], name="run_number_unique"),
            models.CheckConstraint(
                condition=Q(status__in=[s.value for s in RunStatus]), name="run_status_known"
            ),
            models.CheckConstraint(
                condition=~Q(status__in=[s.value for s in RunStatus if s in TERMINAL])
                | ~Q(stop_reason=""),
                name="run_end_has_reason",
            ),
            models.CheckConstraint(
                condition=Q(iterations__lte=F("limit_iterations")),
                name="run_iterations_within_limit",
            ),
            models.CheckConstraint(
                condition=Q(status=RunStatus.RUNNING, lease_expires_at__isnull=False)
                | (~Q(status=RunStatus.RUNNING) & Q(lease_expires_at__isnull=True)),
                name="run_lease_only_while_running",
            ),
        ]
        indexes = [
            # The dispatcher's candidates: queued and not yet admitted.
            models.Index(
                fields=["next_at", "id"],
                name="run_waiting",
                condition=Q(status=RunStatus.QUEUED, admitted_at__isnull=True),
            ),
            # The first run of a lane, by priority and by age. No partial index: SQLite
            # takes none for a status that comes as a parameter.
            models.Index(fields=["lane", "status", "-priority", "id"], name="run_first"),
            models.Index(fields=["lane", "status", "created_at"], name="run_oldest"),
            # Who holds slots.
            models.Index(
                fields=["admitted_at"],
                name="run_holding",
                condition=Q(admitted_at__isnull=False),
            ),
            # The sweeper's: leases that ran out.
            models.Index(
                fields=["lease_expires_at"],
                name="run_leases",
                condition=Q(status=RunStatus.RUNNING),
            ),
            # The sweeper's: deadlines of runs that have not ended.
            models.Index(
                fields=["deadline_at"],
                name="run_deadlines",
                condition=Q(status__in=[s.value for s in RunStatus if s not in TERMINAL]),
            ),
            models.Index(fields=["status", "-id"]),
        ]

    def __str__(self) -> str:
        return f"run {self.number} of {self.task.key}"

    @property
    def limits(self) -> Limits:
        """The caps that hold now: the first ones and every grant since."""
        return Limits(
            iterations=self.limit_iterations,
            errors=self.limit_errors,
            active_seconds=self.limit_active_seconds,
            model_calls=self.limit_model_calls,
            tool_calls=self.limit_tool_calls,
            tokens=self.limit_tokens,
            cost_microusd=self.limit_cost_microusd,
        )

    @property
    def is_terminal(self) -> bool:
        """Whether nothing can follow."""
        return RunStatus(self.status) in TERMINAL

    @property
    def sentence(self) -> str:
        """Why it is where it is, in one sentence; empty while it simply goes on."""
        return self.reason or (SENTENCES[StopReason(self.stop_reason)] if self.stop_reason else "")


class LimitGrant(models.Model):
    """Caps given to a run: the first row at submission, one more for each person's grant.

    Rows are never edited; the sums stand on the run.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="grants")
    iterations = models.PositiveIntegerField(default=0)
    model_calls = models.PositiveIntegerField(null=True)
    tool_calls = models.PositiveIntegerField(null=True)
    tokens = models.PositiveBigIntegerField(null=True)
    cost_microusd = models.PositiveBigIntegerField(null=True)
    errors = models.PositiveIntegerField(default=0)
    active_seconds = models.PositiveIntegerField(null=True)
    granted_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)


class AttemptStatus(models.TextChoices):
    """How one attempt stands or ended."""

    RUNNING = "running"
    JUDGED = "judged"  # evaluated; the loop went on or ended
    LIMIT = "limit"  # a limit refused its next call
    ESCALATED = "escalated"  # it stopped for a person
    WAITED = "waited"  # what it looks at is not ready; costs no iteration
    ERROR = "error"  # it threw; costs no iteration
    ABANDONED = "abandoned"  # cancelled or past its deadline


class Attempt(models.Model):
    """One iteration of a run's loop: one Celery task, one lease."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    no = models.PositiveIntegerField()
    status = models.CharField(max_length=12, choices=AttemptStatus.choices)
    token = models.PositiveBigIntegerField()
    claims = models.PositiveIntegerField(default=1)
    """How often it was claimed: more than once when a worker died or handed it back."""
    worker = models.CharField(max_length=120)
    counted = models.BooleanField(default=False)
    label = models.CharField(max_length=40, blank=True)
    """The judgment in a word: approved, changes requested, checks failed, ..."""
    judgment = models.CharField(max_length=12, blank=True)
    feedback = models.TextField(blank=True)
    error = models.TextField(blank=True)
    tree_before = models.TextField(blank=True)
    tree_after = models.TextField(blank=True)
    pack = models.CharField(max_length=64, blank=True)
    """Artifact with the objects that this attempt's snapshots added."""
    used_tokens = models.PositiveBigIntegerField(default=0)
    used_cost_microusd = models.PositiveBigIntegerField(default=0)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "no"], name="attempt_no_unique"),
            models.UniqueConstraint(
                fields=["run"],
                condition=Q(status=AttemptStatus.RUNNING),
                name="attempt_one_live_per_run",
            ),
        ]

    def __str__(self) -> str:
        return f"attempt {self.no} of {self.run}"


class StepKind(models.TextChoices):
    """What a step does to the world."""

    MODEL_CALL = "model_call"
    AGENT_WORK = "agent_work"
    CHECK = "check"
    COMMAND = "command"
    TOOL_CALL = "tool_call"
    UNDO = "undo"


class StepStatus(models.TextChoices):
    """How a step stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    OUTCOME_UNKNOWN = "outcome_unknown"  # sent, and nobody knows whether it happened


def _step_kinds() -> list[tuple[str, str]]:
    return StepKind.choices


class Step(models.Model):
    """One recorded effect inside an attempt.

    A repeated attempt replays the steps that are done, so nothing is paid for or run twice.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="steps")
    attempt_no = models.PositiveIntegerField()
    seq = models.PositiveIntegerField()
    kind = models.CharField(max_length=12, choices=_step_kinds)
    role = models.CharField(max_length=40, blank=True)
    """The agent's role, or the check's name."""
    name = models.TextField(blank=True)
    """The agent profile, or the command."""
    input_digest = models.CharField(max_length=64)
    status = models.CharField(max_length=16, choices=StepStatus.choices)
    result = models.JSONField(null=True)
    output = models.CharField(max_length=64, blank=True)
    """Artifact with the answer or the command's output."""
    prompt = models.CharField(max_length=64, blank=True)
    """Artifact with what the agent was asked."""
    tree_after = models.TextField(blank=True)
    error = models.TextField(blank=True)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "attempt_no", "seq"], name="step_seq_unique")
        ]


class ReservationState(models.TextChoices):
    """Where a reservation stands. Open ones count in full."""

    RESERVED = "reserved"  # surely not sent yet
    IN_FLIGHT = "in_flight"  # may have been sent
    SETTLED = "settled"  # the real usage is known
    UNKNOWN = "unknown"  # sent, usage never learned: charged in full
    RELEASED = "released"  # never sent: given back
    VOID = "void"  # taken out by a rebuild of the counters


class Reservation(models.Model):
    """One row of the ledger: the worst case before a call, the real usage after it."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="reservations")
    day = models.ForeignKey(
        "loops.ProjectDay",
        null=True,
        on_delete=models.PROTECT,
        db_index=False,
        related_name="reservations",
    )
    """Where it is settled, also after midnight; empty for what costs neither tokens nor money."""
    attempt_no = models.PositiveIntegerField()
    seq = models.PositiveIntegerField()
    token = models.PositiveBigIntegerField()
    state = models.CharField(max_length=10, choices=ReservationState.choices)
    est_model_calls = models.PositiveIntegerField(default=0)
    est_tool_calls = models.PositiveIntegerField(default=0)
    est_tokens = models.PositiveBigIntegerField(default=0)
    est_cost_microusd = models.PositiveBigIntegerField(default=0)
    actual_tokens = models.PositiveBigIntegerField(null=True)
    actual_cost_microusd = models.BigIntegerField(null=True)
    """Negative only where a person corrects a charge, as step 0 of the ledger."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["run"],
                name="reservation_open",
                condition=Q(state__in=[ReservationState.RESERVED, ReservationState.IN_FLIGHT]),
            ),
            models.Index(
                fields=["day"],
                name="reservation_open_by_day",
                condition=Q(state__in=[ReservationState.RESERVED, ReservationState.IN_FLIGHT]),
            ),
        ]

    @property
    def worst(self) -> Amount:
        """What it may use at most."""
        return Amount(**{axis: getattr(self, f"est_{axis}") for axis in COUNTED})
