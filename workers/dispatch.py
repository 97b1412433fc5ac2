"""Puts wake-ups on the broker: admits waiting runs fairly, publishes what is written.

Publishing never happens in a request or inside a transaction. A wake-up that is published twice
is a no-op, one that is lost is written again by the sweeper.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta

import redis
from django.db.models import Count, Q, QuerySet
from django.db.models.functions import Now
from kombu.exceptions import OperationalError

from loops.core.lifecycle import RunStatus
from loops.models import AgentProfile, Outbox, Project, Run
from loops.store import attempts, days
from workers import slots
from workers.app import ITERATE, app
from workers.crashpoints import reach

log = logging.getLogger(__name__)

_BATCH = 20
_TRY_AGAIN = timedelta(seconds=5)


def run_pass() -> int:
    """Admit and publish what can go now. Returns how many wake-ups were published.

    With Redis away nothing is admitted and nothing is lost: the next pass tries again.
    """
    try:
        admit_waiting()
        return publish_unsent()
    except (redis.RedisError, OperationalError) as error:
        log.warning("nothing dispatched, Redis is away: %s", error)
        return 0


def admit_waiting() -> int:
    """Give free slots to waiting runs, one project after the other.

    The project that holds the fewest slots goes first, and inside it the highest priority, then
    the oldest task.
    """
    admitted = 0
    profiles = {profile.name: profile for profile in AgentProfile.objects.all()}
    for run in _in_turn():
        full = slots.acquire(run, slots.scopes_of(run, profiles))
        if full is not None and full.name == "pool":
            break
        if full is not None:
            continue
        if attempts.admit(run.pk, run.attempt_no) is None:
            _let_go(run, profiles)
            continue
        reach("admitted")
        admitted += 1
    return admitted


def _let_go(run: Run, profiles: dict[str, AgentProfile]) -> None:
    # Of two dispatchers that took the same slots for the same run, one admitted it: they are its.
    if not Run.objects.filter(pk=run.pk, admitted_at__isnull=False).exists():
        slots.release(slots.holder(run.pk, run.lease_token), slots.scopes_of(run, profiles))


def publish_unsent() -> int:
    """Publish every wake-up that was written and not sent yet.

    Of several dispatchers one tries each row; one that dies in between is followed by another.
    """
    published = 0
    fresh = Q(tried_at__isnull=True) | Q(tried_at__lt=Now() - _TRY_AGAIN)
    unsent = Outbox.objects.filter(fresh, sent_at__isnull=True)
    for wakeup in unsent.order_by("id")[:_BATCH]:
        if not unsent.filter(pk=wakeup.pk).update(tried_at=Now()):
            continue
        app.send_task(ITERATE, args=[wakeup.run_id, wakeup.attempt_no], retry=False)
        reach("published")
        Outbox.objects.filter(pk=wakeup.pk).update(sent_at=Now())
        published += 1
    return published


def waiting() -> QuerySet[Run]:
    """Runs that could start their next attempt if they had their slots."""
    return Run.objects.filter(
        Q(deadline_at__isnull=True) | Q(deadline_at__gt=Now()),
        status=RunStatus.QUEUED,
        admitted_at__isnull=True,
        cancel_requested=False,
        next_at__lte=Now(),
    ).exclude(task__project__in=days.used_up().values("project"))


def _in_turn() -> Iterator[Run]:
    holding = Q(
        task__runs__status__in=[RunStatus.QUEUED, RunStatus.RUNNING],
        task__runs__admitted_at__isnull=False,
    )
    projects = list(
        Project.objects.filter(pk__in=waiting().values("task__project"))
        .annotate(held=Count("task__runs", filter=holding))
        .order_by("held", "pk")
    )
    lines = {
        project.pk: list(
            waiting()
            .filter(task__project=project)
            .select_related("task__project")
            .order_by("-task__priority", "id")[:_BATCH]
        )
        for project in projects
    }
    held = {project.pk: project.held for project in projects}
    while any(lines.values()):
        first = min((pk for pk in lines if lines[pk]), key=lambda pk: held[pk])
        held[first] += 1
        yield lines[first].pop(0)
