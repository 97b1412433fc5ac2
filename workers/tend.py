"""Dispatcher, graphs and sweeper in one process. Several copies may run: every step is guarded."""

from __future__ import annotations

import contextlib
import logging
import threading
import time

import redis
from django.db import DatabaseError, connection

from loops import feed
from workers import day_gate, dispatch, graphs, presence, sweeper

log = logging.getLogger(__name__)

SWEEP_SECONDS = 5.0
_WAIT_SECONDS = 0.5
_AWAY_SECONDS = 1.0


def tend(stop: threading.Event) -> None:
    """Dispatch on every nudge and at least twice a second, sweep every five, until `stop`."""
    presence.keep_announcing("tender", "", stop)
    swept = -SWEEP_SECONDS
    nudges = _Nudges()
    while not stop.is_set():
        try:
            if time.monotonic() - swept >= SWEEP_SECONDS:
                sweeper.run_pass()
                day_gate.run_pass()
                swept = time.monotonic()
            graphs.run_pass()
            dispatch.run_pass()
        except DatabaseError as error:
            log.warning("the database did not answer: %s", error)
            connection.close()
        nudges.wait(stop)
    with contextlib.suppress(DatabaseError):
        presence.leave()


class _Nudges:
    """Waits for "something may be admitted now"; without Redis it simply waits."""

    def __init__(self) -> None:
        self._subscription: redis.client.PubSub | None = None

    def wait(self, stop: threading.Event) -> None:
        try:
            if self._subscription is None:
                self._subscription = feed.subscription(feed.NUDGE)
            self._subscription.get_message(timeout=_WAIT_SECONDS)
        except redis.RedisError:
            self._subscription = None
            stop.wait(_AWAY_SECONDS)
