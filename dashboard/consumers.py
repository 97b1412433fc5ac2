"""The socket of an open page. It carries only "this changed"; pages fetch what they may see."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from itertools import groupby
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.auth import get_user
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest

from dashboard.live import Seat, hub

LOGGED_OUT, BAD_FRAME = 4403, 4400
MOST_TOPICS, MOST_BYTES = 20, 4096
TOPIC = re.compile(r"tasks|gate|graphs|graph\.[0-9]{1,18}|run\.[0-9]{1,18}")


class BadFrame(ValueError):
    """The page sent what no page of ours sends."""


class LiveConsumer(AsyncWebsocketConsumer):
    """One page: `{"subscribe": [topics]}` in, `{"topics", "seq"}` and `{"live"}` out."""

    recheck_seconds = 60.0

    async def connect(self) -> None:
        """Accept first: a refused handshake could not tell the page why."""
        self.seat: Seat | None = None
        self.tasks: list[asyncio.Task[None]] = []
        await self.accept()
        user, session = self.scope["user"], self.scope["session"]
        if user is None or not user.is_authenticated or session.session_key is None:
            await self.close(code=LOGGED_OUT)
            return
        self.seat = hub().join()
        self.tasks = [
            asyncio.create_task(self._send_news(self.seat)),
            asyncio.create_task(self._watch_session(session.session_key, user.pk)),
        ]

    async def disconnect(self, _code: int) -> None:
        """Leave nothing running."""
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with contextlib.suppress(asyncio.CancelledError, RuntimeError):
                await task
        if self.seat is not None:
            await hub().leave(self.seat)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Follow what the page shows now."""
        if self.seat is None:
            return
        try:
            topics = wanted(text_data if bytes_data is None else None)
        except BadFrame:
            await self.close(code=BAD_FRAME)
            return
        hub().follow(self.seat, topics)

    async def _send_news(self, seat: Seat) -> None:
        said: bool | None = None
        while True:
            due = await seat.news()
            if seat.on_air is not said:
                said = seat.on_air
                await self.send(json.dumps({"live": said}))
            by_seq = sorted(due.items(), key=lambda item: (item[1], item[0]))
            for seq, group in groupby(by_seq, key=lambda item: item[1]):
                await self.send(json.dumps({"topics": [topic for topic, _ in group], "seq": seq}))

    async def _watch_session(self, session_key: str, user_id: int) -> None:
        while True:
            await asyncio.sleep(self.recheck_seconds)
            if not await still_logged_in(session_key, user_id):
                await self.close(code=LOGGED_OUT)
                return


def wanted(frame: str | None) -> frozenset[str]:
    """The topics that a frame asks for. Raises `BadFrame`."""
    if frame is None or len(frame.encode()) > MOST_BYTES:
        raise BadFrame
    try:
        message: Any = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise BadFrame from error
    topics = message.get("subscribe") if isinstance(message, dict) else None
    if not isinstance(topics, list) or len(topics) > MOST_TOPICS:
        raise BadFrame
    if not all(isinstance(topic, str) and TOPIC.fullmatch(topic) for topic in topics):
        raise BadFrame
    return frozenset(topics)


@database_sync_to_async
def still_logged_in(session_key: str, user_id: int) -> bool:
    """Whether the session still stands: not logged out, same password, user still active."""
    request = HttpRequest()
    request.session = SessionStore(session_key)
    return get_user(request).pk == user_id
