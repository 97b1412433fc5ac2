"""Leaves an overloaded provider alone: after some overload answers in a row its profile rests.

While it rests no run that needs it is admitted, so none of them holds a slot or a worker. When the
rest is over one run tries first, for `loops.admission.at_once` admits no second; its success ends
it, another overload makes the next rest twice as long.
"""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now

from loops import clock
from loops.core.errors import AgentFault, LoopwardenError
from loops.models import AgentProfile, Run

EVENT = "overloaded"
MOST_OVERLOADS = 20
"""So many are free for a run; from then on each counts as an error, so that every run ends."""
_LONGEST_DOUBLING = 16


class ProviderBusy(LoopwardenError):
    """The agent's provider is overloaded: the attempt goes back and waits `seconds`."""

    def __init__(self, message: str, *, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


def struck(run: Run, profile: AgentProfile, fault: AgentFault) -> LoopwardenError:
    """Note an overload answer. Returns what the attempt ends with.

    An overload is no fault of the task, so it costs none of the run's errors and no step that is
    recorded already; the call itself is charged. Only a run that meets it too often is to blame.
    """
    _strike(profile, fault)
    before = run.events.filter(kind=EVENT).count()
    if before >= MOST_OVERLOADS:
        return fault
    seconds = _rest(before, fault)
    return ProviderBusy(
        f"the agent {profile.name} is busy. {fault} The run tries again in {seconds:g} s.",
        seconds=seconds,
    )


def succeeded(profile: AgentProfile) -> None:
    """A call came through: what was counted when it began is over."""
    if not profile.strikes:
        return
    # A strike since then is newer than this call's success.
    AgentProfile.objects.filter(pk=profile.pk, strikes=profile.strikes).update(
        strikes=0, resting_until=None, last_overload=""
    )
    profile.strikes = 0


def _strike(profile: AgentProfile, fault: AgentFault) -> None:
    with transaction.atomic():
        now = AgentProfile.objects.select_for_update().filter(pk=profile.pk).first()
        if now is None:
            return  # removed meanwhile
        resting = now.resting_until is not None and now.resting_until > clock.now()
        # Answers to calls that were under way when it went to rest are no further proof.
        strikes = now.strikes + (not resting)
        changes = {"strikes": strikes, "last_overload": str(fault)}
        over = strikes - settings.LOOPWARDEN_BREAKER_STRIKES
        if over >= 0 and not resting:
            rest = timedelta(seconds=_rest(over, fault))
            AgentProfile.objects.filter(pk=now.pk).update(resting_until=Now() + rest)
        AgentProfile.objects.filter(pk=now.pk).update(**changes)


def _rest(before: int, fault: AgentFault) -> float:
    """Seconds: what the provider asks for, but never less than a time that doubles, capped."""
    doubling = 2.0 ** min(before, _LONGEST_DOUBLING)
    return min(max(doubling, fault.retry_after or 0), settings.LOOPWARDEN_RETRY_SECONDS)
