"""Keeps the leases of this process alive, and tells an attempt when it must stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.utils import timezone

from loops.store import attempts
from workers import slots

log = logging.getLogger(__name__)

draining = threading.Event()
"""Set when this worker shuts down: attempts stop at their next step and are handed back."""


class Lease:
    """One attempt's right to go on. `lost` is set once it must stop and write nothing more."""

    def __init__(
        self,
        claim: attempts.Claim,
        scopes: list[slots.Scope],
        run_deadline: datetime | None = None,
    ) -> None:
        self.claim = claim
        self.scopes = scopes
        self.lost = threading.Event()
        seconds = float(settings.LOOPWARDEN_ATTEMPT_SECONDS)
        if run_deadline is not None:
            seconds = min(seconds, (run_deadline - timezone.now()).total_seconds())
        self.deadline = time.monotonic() + seconds
        self._renewed = time.monotonic()

    def beat(self) -> None:
        """Renew once. By the local monotonic clock an unreachable database ends the lease too."""
        try:
            if not attempts.renew(self.claim):
                self.lost.set()
                return
            self._renewed = time.monotonic()
            slots.renew(self.holder, self.scopes)
        except DatabaseError as error:
            log.warning("lease of run %s not renewed: %s", self.claim.run_id, error)
            if time.monotonic() > self._renewed + settings.LOOPWARDEN_LEASE_SECONDS * 2 / 3:
                self.lost.set()
        except redis.RedisError as error:
            log.warning("slots of run %s not renewed: %s", self.claim.run_id, error)

    @property
    def holder(self) -> str:
        """Under which name it holds its slots: it was admitted just before its claim."""
        return slots.holder(self.claim.run_id, self.claim.token - 1)

    @property
    def outstayed(self) -> bool:
        """Whether it ran out by the local clock, though no heartbeat has noticed yet."""
        return time.monotonic() > self._renewed + settings.LOOPWARDEN_LEASE_SECONDS

    @property
    def seconds_left(self) -> float:
        """Until the attempt's own deadline or the run's, whichever comes first."""
        return max(0.0, self.deadline - time.monotonic())


class Heart:
    """One thread for all leases of the process."""

    def __init__(self) -> None:
        self._leases: set[Lease] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def keep(self, lease: Lease) -> Iterator[Lease]:
        """Renew the lease every third of its length while the block runs."""
        with self._lock:
            self._leases.add(lease)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._beat, name="heart", daemon=True)
                self._thread.start()
        try:
            yield lease
        finally:
            with self._lock:
                self._leases.discard(lease)

    def _beat(self) -> None:
        while True:
            time.sleep(settings.LOOPWARDEN_LEASE_SECONDS / 3)
            with self._lock:
                leases = list(self._leases)
                if not leases:
                    self._thread = None
                    break
            for lease in leases:
                lease.beat()
            connection.close()


heart = Heart()
