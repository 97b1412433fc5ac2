"""Keeps the leases of this process alive, and tells an attempt when it must stop."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis
from django.conf import settings
from django.db import DatabaseError, connection

from loops import feed
from loops.admission import Scope
from loops.core.errors import WorkingTimeUsed
from loops.store import attempts
from workers import slots

log = logging.getLogger(__name__)

_AWAY_SECONDS = 1.0
draining = threading.Event()
"""Set when this worker shuts down: attempts stop at their next step and are handed back."""


class Lease:
    """One attempt's right to go on. `lost` is set once it must stop and write nothing more.

    Everything here is counted on the monotonic clock, from what the database said at the claim:
    this host's time of day means nothing.
    """

    def __init__(self, claim: attempts.Claim, scopes: list[Scope]) -> None:
        self.claim = claim
        self.scopes = scopes
        self.lost = threading.Event()
        seconds = float(settings.LOOPWARDEN_ATTEMPT_SECONDS)
        if claim.seconds_left is not None:
            seconds = min(seconds, claim.seconds_left)
        self._working_until = math.inf
        if claim.working_cap is not None:
            left = max(0.0, claim.working_cap - claim.worked_ms / 1000)
            self._working_until = claim.asked_at + left
        self.deadline = min(claim.asked_at + seconds, self._working_until)
        self._renewed = claim.asked_at

    def beat(self) -> None:
        """Renew once. By the local monotonic clock an unreachable database ends the lease too."""
        asked_at = time.monotonic()
        try:
            if not attempts.renew(self.claim):
                self.lost.set()
                return
            self._renewed = asked_at
            slots.renew(self.holder, self.scopes)
        except DatabaseError as error:
            log.warning("lease of run %s not renewed: %s", self.claim.run_id, error)
            if time.monotonic() > self._renewed + settings.LOOPWARDEN_LEASE_SECONDS * 2 / 3:
                self.lost.set()
        except redis.RedisError as error:
            log.warning("slots of run %s not renewed: %s", self.claim.run_id, error)

    @property
    def holder(self) -> str:
        """Under which name it holds its slots."""
        return slots.holder(self.claim.run_id, self.claim.token)

    @property
    def outstayed(self) -> bool:
        """Whether it ran out by the local clock, though no heartbeat has noticed yet."""
        return time.monotonic() > self._renewed + settings.LOOPWARDEN_LEASE_SECONDS

    @property
    def seconds_left(self) -> float:
        """Until the attempt's deadline, the run's, or the end of its working time."""
        return max(0.0, self.deadline - time.monotonic())

    def refuse_overtime(self) -> None:
        """Raise `WorkingTimeUsed` when the run has worked for as long as it may."""
        cap, now = self.claim.working_cap, time.monotonic()
        if cap is not None and now >= self._working_until:
            used = self.claim.worked_ms / 1000 + now - self.claim.asked_at
            raise WorkingTimeUsed(cap=cap, used=round(used))


class Heart:
    """One thread for all leases of the process.

    It beats every third of a lease, and at once for a run that the workers are told of. A word
    that comes before the lease is here needs no memory: the attempt's next call is refused.
    """

    def __init__(self) -> None:
        self._leases: set[Lease] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def keep(self, lease: Lease) -> Iterator[Lease]:
        """Renew the lease while the block runs."""
        with self._lock:
            self._leases.add(lease)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._live, name="heart", daemon=True)
                self._thread.start()
        try:
            yield lease
        finally:
            with self._lock:
                self._leases.discard(lease)

    def give_up(self) -> None:
        """Stop what is still at work: calls and commands end, and the attempts are handed back."""
        for lease in self._of(feed.EVERY_RUN):
            lease.lost.set()

    def _of(self, run_id: int) -> list[Lease]:
        with self._lock:
            return [one for one in self._leases if run_id in (feed.EVERY_RUN, one.claim.run_id)]

    def _live(self) -> None:
        ear, due = _Ear(), time.monotonic() + settings.LOOPWARDEN_LEASE_SECONDS / 3
        while True:
            told = ear.listen(max(0.0, due - time.monotonic()))
            if time.monotonic() >= due:
                told, due = feed.EVERY_RUN, time.monotonic() + settings.LOOPWARDEN_LEASE_SECONDS / 3
                with self._lock:
                    if not self._leases:
                        self._thread = None
                        break
            if told is not None:
                for lease in self._of(told):
                    lease.beat()
                connection.close()
        ear.close()


class _Ear:
    """Hears which run must be looked at; without Redis it only lets the time pass."""

    def __init__(self) -> None:
        self._subscription: redis.client.PubSub | None = None
        self._away = False

    def listen(self, seconds: float) -> int | None:
        """The run of the next word, or None; every run where a word may have been missed."""
        try:
            if self._subscription is None:
                self._subscription = feed.subscription(feed.HALT)
                self._subscription.get_message(timeout=_AWAY_SECONDS)  # takes the confirmation
                self._away = False
                return feed.EVERY_RUN
            message = self._subscription.get_message(timeout=seconds)
            return None if message is None else int(message["data"])
        except redis.RedisError as error:
            if not self._away:
                log.warning("cancels are heard of at the next heartbeat: %s", error)
            self._away = True
            self.close()
            time.sleep(min(seconds, _AWAY_SECONDS))
            return None

    def close(self) -> None:
        """Give the connection back."""
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None


heart = Heart()
