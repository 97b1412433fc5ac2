"""The live socket: who may listen, to what, and that one slow page holds up nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client

from dashboard import consumers
from dashboard.asgi import application
from dashboard.live import Hub, Seat
from loops import feed

pytestmark = pytest.mark.django_db(transaction=True)
ORIGIN = b"http://localhost:8700"


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Play one story on an event loop of its own; the thread of the tests may have one already."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(asyncio.wait_for(story(), 20))).result(30)


class Page(ApplicationCommunicator):
    """An open page: ASGI messages in and out, without a server between."""

    async def connect(self) -> bool:
        """Open the socket and say whether the server took it."""
        await self.send_input({"type": "websocket.connect"})
        message = await self.receive_output(5)
        return bool(message["type"] == "websocket.accept")

    async def say(self, *, text: str | None = None, data: bytes | None = None) -> None:
        """Send one frame."""
        await self.send_input({"type": "websocket.receive", "text": text, "bytes": data})

    async def hear(self) -> Any:
        """The next frame."""
        message = await self.receive_output(5)
        assert message["type"] == "websocket.send", message
        return json.loads(message["text"])

    async def close_code(self) -> int:
        """The code that the server closes with."""
        message = await self.receive_output(5)
        assert message["type"] == "websocket.close", message
        return int(message["code"])

    async def leave(self) -> None:
        """Close the page."""
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(5)


def socket(client: Client | None = None, origin: bytes | None = ORIGIN) -> Page:
    """A page's socket, with its session cookie."""
    headers = [(b"origin", origin)] if origin is not None else []
    if client is not None and "sessionid" in client.cookies:
        headers.append((b"cookie", f"sessionid={client.cookies['sessionid'].value}".encode()))
    scope = {"type": "websocket", "path": "/ws/live/", "headers": headers, "query_string": b""}
    return Page(application, {**scope, "subprotocols": []})


async def on_air(page: Page, *topics: str) -> None:
    """Subscribe and wait until hints arrive."""
    assert await page.connect()
    await page.say(text=json.dumps({"subscribe": topics}))
    said = await page.hear()
    if said == {"live": False}:
        said = await page.hear()
    assert said == {"live": True}


def hint(*topics: str, seq: int = 1) -> None:
    """What a worker publishes."""
    feed.client().publish(feed.CHANNEL, json.dumps({"topics": topics, "seq": seq}))


def test_a_hint_reaches_the_pages_that_follow_its_topic(pages: Client) -> None:
    async def story() -> None:
        one, other = socket(pages), socket(pages)
        await on_air(one, "run.7", "gate")
        await on_air(other, "run.8")
        hint("run.7", "tasks", seq=5)
        assert await one.hear() == {"topics": ["run.7"], "seq": 5}
        assert await other.receive_nothing(0.2)
        await one.leave()
        await other.leave()

    run(story)


def test_a_stranger_is_told_to_log_in() -> None:
    async def story() -> None:
        page = socket()
        assert await page.connect()
        assert await page.close_code() == consumers.LOGGED_OUT

    run(story)


@pytest.mark.parametrize(
    "origin", [None, b"https://evil.example", b"http://localhost:3000", b"null"]
)
def test_other_origins_get_no_socket(pages: Client, origin: bytes | None) -> None:
    async def story() -> None:
        assert not await socket(pages, origin).connect()

    run(story)


@pytest.mark.parametrize(
    "frame",
    [
        "no json",
        "[]",
        '{"subscribe": "run.1"}',
        '{"subscribe": ["secrets"]}',
        '{"subscribe": ["run.1; drop"]}',
        '{"subscribe": [1]}',
        json.dumps({"subscribe": [f"run.{no}" for no in range(21)]}),
        json.dumps({"subscribe": ["tasks"], "pad": "x" * 4096}),
        "[" * 4000,
    ],
    ids=lambda frame: frame[:20],
)
def test_a_frame_that_no_page_sends_ends_the_socket(pages: Client, frame: str) -> None:
    async def story() -> None:
        page = socket(pages)
        await page.connect()
        await page.say(text=frame)
        assert await page.close_code() == consumers.BAD_FRAME

    run(story)


def test_bytes_end_the_socket_too(pages: Client) -> None:
    async def story() -> None:
        page = socket(pages)
        await page.connect()
        await page.say(data=b'{"subscribe": []}')
        assert await page.close_code() == consumers.BAD_FRAME

    run(story)


@pytest.mark.parametrize("how", ["logout", "password", "inactive"])
def test_who_is_logged_out_is_cut_off(
    pages: Client, alice: User, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(consumers.LiveConsumer, "recheck_seconds", 0.1)

    def end_session() -> None:
        if how == "logout":
            Session.objects.all().delete()
        elif how == "password":
            alice.set_password("another one")
            alice.save()
        else:
            User.objects.update(is_active=False)
        connection.close()  # the thread's own, which nobody else would close

    async def story() -> None:
        page = socket(pages)
        await on_air(page, "tasks")
        assert await page.receive_nothing(0.3)
        await asyncio.to_thread(end_session)
        assert await page.close_code() == consumers.LOGGED_OUT

    run(story)


def test_a_lost_redis_is_said_and_so_is_its_return(pages: Client) -> None:
    async def story() -> None:
        page = socket(pages)
        await on_air(page, "tasks")
        await asyncio.to_thread(feed.client().client_kill_filter, _type="pubsub")
        assert await page.hear() == {"live": False}
        assert await page.hear() == {"live": True}
        hint("tasks", seq=9)
        assert await page.hear() == {"topics": ["tasks"], "seq": 9}
        await page.leave()

    run(story)


def test_a_slow_page_keeps_one_number_per_topic_and_holds_up_nobody() -> None:
    async def story() -> None:
        hub, slow, quick = Hub(), Seat(), Seat()
        hub.follow(slow, frozenset({"tasks", "run.1"}))
        hub.follow(quick, frozenset({"tasks"}))
        for seq in range(100_000):
            hub.hand_out(("tasks", "run.1"), seq)
        assert await quick.news() == {"tasks": 99_999}
        assert await slow.news() == {"tasks": 99_999, "run.1": 99_999}

    run(story)


def test_the_last_page_to_leave_stops_the_subscriber(pages: Client) -> None:
    async def story() -> None:
        page = socket(pages)
        await on_air(page, "tasks")
        assert feed.client().pubsub_numsub(feed.CHANNEL)[0][1] == 1
        await page.leave()
        for _ in range(50):
            if feed.client().pubsub_numsub(feed.CHANNEL)[0][1] == 0:
                return
            await asyncio.sleep(0.05)
        pytest.fail("the subscriber is still there")

    run(story)
