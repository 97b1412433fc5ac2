from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dashboard.local.errors import CannotStart
from dashboard.local.ports import answers, free_port, require_free


@contextmanager
def serving(status: int) -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_a_free_port_passes() -> None:
    require_free("127.0.0.1", free_port())


def test_a_taken_port_is_refused_with_the_setting_to_change() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(CannotStart, match=r"in use.*LOOPWARDEN_PORT"),
    ):
        require_free("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(CannotStart, match=f"cannot use port {port}"):
        require_free("127.0.0.1", port)


@pytest.mark.parametrize(
    ("status", "expected"), [(200, True), (302, True), (404, True), (503, False)]
)
def test_only_a_server_error_is_no_answer(status: int, expected: bool) -> None:
    with serving(status) as port:
        assert answers("127.0.0.1", port) is expected


def test_a_silent_port_is_no_answer() -> None:
    assert not answers("127.0.0.1", free_port())
