"""Pause, resume, the kill switch and drain, as pages, API and command line call them."""

from __future__ import annotations

import logging

import redis

from loops.admission import scopes_of
from loops.core.lifecycle import TERMINAL
from loops.models import AgentProfile, Run
from loops.store import holds
from loops.store.holds import Request, Target
from workers import slots

log = logging.getLogger(__name__)


def pause(target: Target, request: Request) -> bool:
    """Let nothing of the target start any more, and free the slots of what has not begun.

    False: this very request came before. Raises `RequestReused`, or `AlreadyEnded` for a run
    that is over.
    """
    taken = holds.hold(target, request)
    _free(taken or [])
    return taken is not None


def resume(target: Target, request: Request, *, seen: str = "") -> bool:
    """Let the target go on. False: nothing was lifted; see `holds.lift`."""
    return holds.lift(target, request, seen=seen)


def turn_away(run_id: int, no: int) -> None:
    """A message came for a run that is held since its admission, or has ended: free its slots.

    A held run waits again. Of every other run the message is a duplicate, its slots somebody's.
    """
    mine = Run.objects.filter(pk=run_id, attempt_no=no)
    taken = holds.withdraw(mine.filter(holds.held()))
    taken += mine.filter(status__in=TERMINAL).select_related("task__project")
    _free(taken)


def _free(runs: list[Run]) -> None:
    """Their slots need not run out."""
    profiles = {profile.name: profile for profile in AgentProfile.objects.all()} if runs else {}
    for run in runs:
        try:
            member = slots.admission(run.pk, run.lease_token)
            slots.release(member, scopes_of(run, profiles))
        except redis.RedisError as error:
            log.warning("slots of run %s not released, they will run out: %s", run.pk, error)
