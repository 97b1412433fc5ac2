"""The live feed: "this changed", never what it changed to.

A hint is a plain PUBLISH after the commit. It may get lost; whoever hears one fetches the truth
from the database, so nothing is lost with it.
"""

from __future__ import annotations

import json
import logging
import time
from functools import cache
from typing import TypedDict

import redis
from django.conf import settings
from django.db import transaction

CHANNEL = "loopwarden:live"
NUDGE = "loopwarden:nudge"
"""Wakes the dispatcher: something may be admitted now."""
HALT = "loopwarden:halt"
"""Tells the workers to look at once whether a run must stop."""
EVERY_RUN = 0
_QUIET_SECONDS = 2.0

log = logging.getLogger(__name__)


class Hint(TypedDict):
    """One message on `CHANNEL`. `seq` is the event that changed something, 0 for a step."""

    topics: list[str]
    seq: int


@cache
def client() -> redis.Redis:
    """The process' connection pool for hints and counters."""
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=2,
        socket_connect_timeout=0.5,
        health_check_interval=30,
        max_connections=settings.LOOPWARDEN_POOL + 16,
    )


def subscription(channel: str) -> redis.client.PubSub:
    """Listens to one channel on a connection of its own."""
    listener: redis.client.PubSub = client().pubsub(  # type: ignore[no-untyped-call] # redis-py leaves it untyped
        ignore_subscribe_messages=True
    )
    listener.subscribe(channel)
    return listener


def run_topic(run_id: int) -> str:
    """The topic of one run's pages."""
    return f"run.{run_id}"


def graph_topic(graph_id: int) -> str:
    """The topic of one graph's page."""
    return f"graph.{graph_id}"


def changed(run_id: int, seq: int, *, gate: bool = False, nudge: bool = False) -> None:
    """Say after the commit that a run changed, and with it the lists that show it."""
    topics = [run_topic(run_id), "tasks", *(["gate"] if gate else [])]
    hint = json.dumps(Hint(topics=topics, seq=seq))
    transaction.on_commit(lambda: _publish(hint, nudge=nudge))


def graph_changed(graph_id: int, seq: int, *, nudge: bool = False) -> None:
    """Say after the commit that a graph changed, and with it the list that shows it."""
    hint = json.dumps(Hint(topics=[graph_topic(graph_id), "graphs"], seq=seq))
    transaction.on_commit(lambda: _publish(hint, nudge=nudge))


def step_changed(run_id: int) -> None:
    """Say that a step of a run began or ended: only the run's own pages show steps."""
    hint = json.dumps(Hint(topics=[run_topic(run_id)], seq=0))
    transaction.on_commit(lambda: _publish(hint, nudge=False))


def operations_changed() -> None:
    """Say after the commit that something wider than a run was paused, stopped or let go on."""
    hint = json.dumps(Hint(topics=["operations", "tasks"], seq=0))
    transaction.on_commit(lambda: _publish(hint, nudge=True))


def halt(run_id: int) -> None:
    """Make the worker of a run (`EVERY_RUN`: all workers) beat at once after the commit.

    The row says that it must stop; without Redis the worker hears of it at its next heartbeat.
    """
    transaction.on_commit(lambda: _halt(run_id))


def _halt(run_id: int) -> None:
    try:
        client().publish(HALT, run_id)
    except redis.RedisError as error:
        log.warning("worker of run %s hears of it at its next heartbeat: %s", run_id, error)


_silent_until = 0.0


def _publish(hint: str, *, nudge: bool) -> None:
    # One pause per process: a server that is away is not asked again at once.
    global _silent_until  # noqa: PLW0603
    if time.monotonic() < _silent_until:
        return
    try:
        client().publish(CHANNEL, hint)
        if nudge:
            client().publish(NUDGE, "1")
    except redis.RedisError as error:
        _silent_until = time.monotonic() + _QUIET_SECONDS
        log.info("live hint not sent, pages will poll: %s", error)
