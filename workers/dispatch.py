"""Puts wake-ups on the broker: admits waiting runs fairly, publishes what is written.

Publishing never happens in a request or inside a transaction. A wake-up that is published twice
is a no-op, one that is lost is written again by the sweeper.
"""

from __future__ import annotations

import logging
from datetime import timedelta

import redis
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from kombu.exceptions import OperationalError

from loops import feed
from loops.admission import Scope
from loops.core.lifecycle import RunStatus
from loops.crashpoints import reach
from loops.models import Outbox, Run
from loops.store import attempts, days, holds
from workers import slots
from workers.app import ITERATE, app
from workers.redis_url import KEY_PREFIX
from workers.turns import Turn, Turns

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
    """Give free slots to waiting runs, in the order of `turns`. Returns how many were admitted."""
    admitted = 0
    if not _anybody_waits():
        return 0
    turns = Turns(waiting())
    while (turn := turns.next()) is not None:
        run, scopes = turn.run, turn.queue.scopes
        full = slots.acquire(run, scopes)
        if full is not None:
            turns.full(full)
            continue
        reach("acquired")
        if not _admit(turn):
            _let_go(run, scopes)
            turns.gone(turn)
            continue
        reach("admitted")
        turns.granted(turn)
        admitted += 1
    return admitted


def _anybody_waits() -> bool:
    """A cheap look before the dear one: most passes find nobody."""
    queued = Run.objects.filter(status=RunStatus.QUEUED, admitted_at__isnull=True)
    return queued.filter(next_at__lte=Now()).exists()


def _admit(turn: Turn) -> bool:
    return bool(
        attempts.admit(
            turn.run.pk,
            turn.run.attempt_no,
            turn=turn.turn,
            served=turn.served,
            credit_of=turn.credit_of,
        )
    )


def _let_go(run: Run, scopes: list[Scope]) -> None:
    # Of two dispatchers that took the same slots for the same run, one admitted it: they are its.
    if not Run.objects.filter(pk=run.pk, admitted_at__isnull=False).exists():
        slots.release(slots.admission(run.pk, run.lease_token), scopes)


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


def nothing_published() -> bool:
    """Whether surely no wake-up waits on the broker. Redis being away says nothing."""
    try:
        return feed.client().llen(f"{KEY_PREFIX}{app.conf.task_default_queue}") == 0
    except redis.RedisError:
        return False


def waiting() -> QuerySet[Run]:
    """Runs that could start their next attempt if they had their slots."""
    return startable().exclude(task__project__in=days.used_up().values("project"))


def startable() -> QuerySet[Run]:
    """Runs that could start it if they had their slots and their project's day were not used up."""
    return Run.objects.filter(
        Q(deadline_at__isnull=True) | Q(deadline_at__gt=Now()),
        ~holds.held(),
        status=RunStatus.QUEUED,
        admitted_at__isnull=True,
        cancel_requested=False,
        next_at__lte=Now(),
    )
