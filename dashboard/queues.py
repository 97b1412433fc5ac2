"""The lists that pages and API show: one query function for each, so that no two counts differ."""

from __future__ import annotations

from collections import defaultdict

from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from loops.core.lifecycle import TERMINAL, RunStatus
from loops.figures import MOST_SLOTS
from loops.models import Attempt, Escalation, EscalationStatus, Run
from loops.store import days

MOST_COUNTED = 1000
LIVE = tuple(status for status in RunStatus if status not in TERMINAL)

OVERDUE = Q(status__in=LIVE, deadline_at__lte=Now())
"""Past its deadline, although no sweeper has come by yet."""

OF_STATUS: dict[RunStatus, Q] = {
    **{status: Q(status=status) for status in TERMINAL},
    **{status: Q(status=status) & ~Q(deadline_at__lte=Now()) for status in LIVE},
    RunStatus.BUDGET_EXHAUSTED: Q(status=RunStatus.BUDGET_EXHAUSTED) | OVERDUE,
}
"""The runs that are in a status now, as `figures.effective_status` shows it."""

CHIPS: dict[str, tuple[str, Q]] = {
    "all": ("All", Q()),
    "gate": ("Needs you", OF_STATUS[RunStatus.AT_GATE]),
    "running": ("Running", OF_STATUS[RunStatus.QUEUED] | OF_STATUS[RunStatus.RUNNING]),
    # The complement, not the list: the newest first come from the primary key without a sort.
    "ended": ("Ended", ~Q(status__in=LIVE) | Q(deadline_at__lte=Now())),
}


def open_items() -> QuerySet[Escalation]:
    """What waits for a person: the badge counts exactly this and the page lists exactly this."""
    return Escalation.objects.filter(items_now(EscalationStatus.OPEN))


def items_now(status: str) -> Q:
    """The items in a status as `figures.item_status` shows it: no deadline leaves one open."""
    overdue = Q(status=EscalationStatus.OPEN, run__deadline_at__lte=Now())
    if status == EscalationStatus.OPEN:
        return Q(status=status) & ~Q(run__deadline_at__lte=Now())
    return Q(status=status) | overdue if status == EscalationStatus.EXPIRED else Q(status=status)


def current_runs() -> QuerySet[Run]:
    """The newest run of every task."""
    later = Run.objects.filter(task=OuterRef("task"), number__gt=OuterRef("number"))
    return days.marked(Run.objects.filter(~Exists(later)))


def search(words: str) -> Q:
    """Runs whose task has the words in its title, or the key itself."""
    words = words.replace("\0", "").strip()
    if not words:
        return Q()
    number = words.upper().removeprefix("T-")
    found = Q(task__title__icontains=words)
    if number.isascii() and number.isdigit() and len(number) < 19:
        found |= Q(task_id=int(number))
    return found


def count_up_to(runs: QuerySet[Run]) -> str:
    """The count, or `1000+`: counting a million rows would make the page slow for no use."""
    counted = runs[: MOST_COUNTED + 1].count()
    return f"{MOST_COUNTED}+" if counted > MOST_COUNTED else str(counted)


def rail_attempts(runs: list[Run]) -> dict[int, list[Attempt]]:
    """The attempts that the rails of these runs draw, in one query."""
    found: defaultdict[int, list[Attempt]] = defaultdict(list)
    near = F("run__attempt_no") - 2 * MOST_SLOTS
    attempts = Attempt.objects.filter(run__in=[run.pk for run in runs], no__gt=near)
    fields = ("run_id", "no", "status", "label", "judgment", "counted")
    for attempt in attempts.order_by("run_id", "no").only(*fields):
        found[attempt.run_id].append(attempt)
    return found
