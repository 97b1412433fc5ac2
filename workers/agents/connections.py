"""Connections to model servers that end at a deadline or a cancel, whatever the server does.

The SDK's own timeout is per read, so a slow drip would outlast it. Here every read waits in short
slices in its own thread, so a stuck call costs no second thread and no watchdog.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpcore2
from django.conf import settings

from loops.core.errors import AgentFault
from workers.agents.base import CallCancelled, DeadlinePassed

if TYPE_CHECKING:
    import ssl

    import anthropic

_SLICE_SECONDS = 0.2
_CONNECT_SECONDS = 5.0
_WRITE_BYTES = 65_536


@dataclass(frozen=True, kw_only=True)
class Watch:
    """When the call of this thread must end."""

    deadline: float
    cancelled: threading.Event

    @property
    def left(self) -> float:
        """Seconds until the deadline; 0 once it has passed or the call is cancelled."""
        return 0.0 if self.cancelled.is_set() else max(0.0, self.deadline - time.monotonic())

    @property
    def fault(self) -> AgentFault | None:
        """Why it had to end, if it had to."""
        if self.cancelled.is_set():
            return CallCancelled()
        return DeadlinePassed() if not self.left else None


_current = threading.local()


@contextmanager
def watched(deadline: float, cancelled: threading.Event) -> Iterator[Watch]:
    """All that this thread sends and reads in the block ends at the deadline or a cancel."""
    watch = Watch(deadline=deadline, cancelled=cancelled)
    _current.watch = watch
    try:
        yield watch
    finally:
        _current.watch = None


def _wait(most: float | None) -> float | None:
    """How long one system call may take."""
    watch: Watch | None = getattr(_current, "watch", None)
    if watch is None:
        return most
    if not watch.left:
        raise httpcore2.ReadTimeout("the call must end")
    return min(watch.left, most or watch.left)


class _Stream(httpcore2.NetworkStream):
    def __init__(self, inner: httpcore2.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        while True:
            try:
                return self._inner.read(max_bytes, _wait(min(timeout or 600.0, _SLICE_SECONDS)))
            except httpcore2.ReadTimeout:
                # Raises what ends the call; otherwise the server is only slow.
                _wait(None)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _WRITE_BYTES):
            self._inner.write(buffer[start : start + _WRITE_BYTES], _wait(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, _wait(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore2.NetworkBackend):
    def __init__(self) -> None:
        self._inner = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        options = list(socket_options or ())
        return _Stream(self._inner.connect_tcp(host, port, _wait(timeout), local_address, options))


_clients: dict[tuple[str, str], anthropic.Anthropic] = {}
_lock = threading.Lock()


def client_for(base_url: str, api_key: str) -> anthropic.Anthropic:
    """The process' client for this server and key. Its retries are off: an attempt is the retry."""
    with _lock:
        if (base_url, api_key) not in _clients:
            _clients[base_url, api_key] = _new_client(base_url, api_key)
        return _clients[base_url, api_key]


def _new_client(base_url: str, api_key: str) -> anthropic.Anthropic:
    # Both are slow to import, and only a worker that calls a model needs them.
    import anthropic  # noqa: PLC0415
    import httpx2  # noqa: PLC0415

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=settings.LOOPWARDEN_POOL)
    http = anthropic.DefaultHttpxClient(
        limits=limits,
        timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
        follow_redirects=False,
    )
    for transport in (http._transport, *http._mounts.values()):
        if isinstance(transport, httpx2.HTTPTransport):
            transport._pool._network_backend = _Backend()
    return anthropic.Anthropic(api_key=api_key, base_url=base_url, max_retries=0, http_client=http)


@atexit.register
def close_clients() -> None:
    """Close every connection."""
    with _lock:
        for client in _clients.values():
            client.close()
        _clients.clear()
