"""Hints from Redis to the open pages of this process.

One subscriber per process hears every hint and hands it to the seats that asked for its topic. A
seat keeps one number per topic, not a queue: a hint says only "look again", so a slow page costs
nobody anything and misses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Collection

import redis.asyncio as aioredis
from django.conf import settings
from redis.exceptions import RedisError

from loops.feed import CHANNEL, Hint

FIRST_WAIT, LONGEST_WAIT = 0.25, 8.0
PING_SECONDS = 15
LOOK_SECONDS = 1.0

log = logging.getLogger(__name__)


class Seat:
    """What one page is waiting for."""

    def __init__(self) -> None:
        self.topics: frozenset[str] = frozenset()
        self.on_air: bool | None = None
        """Whether hints arrive at all. None: not said yet."""
        self._due: dict[str, int] = {}
        self._news = asyncio.Event()

    def tell(self, topics: Collection[str], seq: int) -> None:
        """Mark the topics as changed."""
        for topic in topics:
            self._due[topic] = max(seq, self._due.get(topic, 0))
        self._news.set()

    def say(self, *, on_air: bool) -> None:
        """Mark the feed itself as up or down."""
        if self.on_air is not on_air:
            self.on_air = on_air
            self._news.set()

    async def news(self) -> dict[str, int]:
        """Wait for something to tell, and take it."""
        await self._news.wait()
        self._news.clear()
        due, self._due = self._due, {}
        return due


class Hub:
    """The seats of one event loop, and its one subscriber while anybody sits."""

    def __init__(self) -> None:
        self._seats: set[Seat] = set()
        self._by_topic: defaultdict[str, set[Seat]] = defaultdict(set)
        self._listener: asyncio.Task[None] | None = None
        self._on_air = False

    def join(self) -> Seat:
        """A new seat."""
        seat = Seat()
        self._seats.add(seat)
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen())
        return seat

    def follow(self, seat: Seat, topics: frozenset[str]) -> None:
        """From now on the seat follows exactly these topics."""
        for topic in seat.topics - topics:
            self._by_topic[topic].discard(seat)
            if not self._by_topic[topic]:
                del self._by_topic[topic]
        for topic in topics - seat.topics:
            self._by_topic[topic].add(seat)
        seat.topics = topics
        seat.say(on_air=self._on_air)

    async def leave(self, seat: Seat) -> None:
        """Give the seat up. The last one to leave stops the subscriber."""
        self.follow(seat, frozenset())
        self._seats.discard(seat)
        if not self._seats and self._listener is not None:
            listener, self._listener = self._listener, None
            self._on_air = False
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listener

    def hand_out(self, topics: Collection[str], seq: int) -> None:
        """Give one hint to whoever follows one of its topics."""
        for topic in topics:
            for seat in self._by_topic.get(topic, ()):
                seat.tell((topic,), seq)

    def _turn(self, *, on_air: bool) -> None:
        self._on_air = on_air
        for seat in self._seats:
            if seat.topics:
                seat.say(on_air=on_air)

    async def _listen(self) -> None:
        wait = FIRST_WAIT
        while not _is_cancelled():
            try:
                async for topics, seq in _hints():
                    wait = FIRST_WAIT
                    if not self._on_air:
                        self._turn(on_air=True)
                    self.hand_out(topics, seq)
            except (RedisError, OSError, ValueError) as error:
                log.warning("no live hints, trying again in %.1f s: %s", wait, error)
            self._turn(on_air=False)
            await asyncio.sleep(wait)
            wait = min(LONGEST_WAIT, wait * 2)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _hints() -> AsyncIterator[tuple[list[str], int]]:
    """Every hint from now on. The first item is empty and says that the subscription stands."""
    client = aioredis.Redis.from_url(
        settings.REDIS_URL, socket_connect_timeout=2, health_check_interval=PING_SECONDS
    )
    async with client, client.pubsub() as pubsub:
        await pubsub.subscribe(CHANNEL)
        # The client may swallow a cancel that comes while it connects: look for it now and then.
        while not _is_cancelled():
            message = await pubsub.get_message(timeout=LOOK_SECONDS)
            if message is None:
                continue
            if message["type"] == "subscribe":
                yield [], 0
            elif message["type"] == "message":
                hint: Hint = json.loads(message["data"])
                yield hint["topics"], hint["seq"]


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = weakref.WeakKeyDictionary()


def hub() -> Hub:
    """The hub of the running event loop."""
    return _hubs.setdefault(asyncio.get_running_loop(), Hub())
