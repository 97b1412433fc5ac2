"""A real Chromium on a real web process: uvicorn, sockets and Valkey included."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import BrowserContext, ConsoleMessage, Page

# Playwright's synchronous calls run an event loop in the thread of the test.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
FLAGS = [
    "--no-sandbox",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-gpu",
    "--no-first-run",
]


EXPECTED = (
    "WebSocket",
    "ERR_CONNECTION",
    "htmx:sendError",
    "htmx:afterRequest",
    "status of 400",
    "status of 409",
)


class Web:
    """One web process, in a thread, that can go away and come back on the same port."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Serve until `stop`."""
        from dashboard.asgi import application

        if self._listener.fileno() == -1:
            self._listener = socket.create_server(("127.0.0.1", self.port))
        config = uvicorn.Config(
            application, lifespan="off", log_level="error", ws="websockets-sansio"
        )
        self._server = uvicorn.Server(config)
        run = self._server.run
        self._thread = threading.Thread(target=run, args=([self._listener],), daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        """Close every socket and listen no more."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(10)
            self._server = None
        self._listener.close()


@pytest.fixture
def web(transactional_db: None) -> Iterator[Web]:
    """The web process of one test."""
    web = Web()
    settings.ORIGINS.append(web.address)
    web.start()
    yield web
    web.stop()
    settings.ORIGINS.remove(web.address)


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """The system's Chromium."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if found is None:
        pytest.skip("no chromium on PATH; set CHROMIUM")
    return {**browser_type_launch_args, "executable_path": found, "args": FLAGS}


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args: dict[str, Any]) -> dict[str, Any]:
    """The same window for every test."""
    return {
        **browser_context_args,
        "viewport": {"width": 1280, "height": 800},
        "locale": "en-US",
        "timezone_id": "UTC",
        "reduced_motion": "reduce",
    }


def log_in(context: BrowserContext, web: Web, user: User) -> None:
    """Give the browser a session."""
    client = Client()
    client.force_login(user)
    cookie = {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": web.address}
    context.add_cookies([cookie])  # type: ignore[list-item]


@pytest.fixture
def tab(page: Page, context: BrowserContext, web: Web, alice: User) -> Iterator[Page]:
    """Alice's tab. Anything that the browser complains of fails the test."""
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        # What a stopped server and a refused form leave on the console is what those tests ask for.
        if message.location["url"].endswith("/nowhere/"):
            return
        if message.type == "error" and not any(word in message.text for word in EXPECTED):
            complaints.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    log_in(context, web, alice)
    yield page
    assert complaints == []
