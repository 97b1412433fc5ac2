"""http_get reads from allowed hosts and from nothing else (S2-24)."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.filetools import ToolError
from workers.tools import web
from workers.tools.web import Target, fetch, target_of

ALLOWED = ["api.example.com", "other.example.com:8443", "http://plain.example.com"]
PUBLIC = "93.184.216.34"


def resolving(*addresses: str) -> Callable[[str, int], list[str]]:
    return lambda _host, _port: list(addresses)


def test_s2_24_an_allowed_host_is_reached_at_the_address_that_was_checked() -> None:
    found = target_of("https://API.example.com/a?b=c", ALLOWED, resolving(PUBLIC))
    assert (found.host, found.port, found.address) == ("api.example.com", 443, PUBLIC)
    assert target_of("http://plain.example.com/", ALLOWED, resolving(PUBLIC)).port == 80
    assert target_of("https://other.example.com:8443", ALLOWED, resolving(PUBLIC)).port == 8443


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example.com/",
        "https://api.example.com.evil.org/",
        "https://api.example.com:8443/",
        "http://api.example.com/",
        "https://sub.api.example.com/",
        "https://api.example.com@evil.org/",
        "https://user:secret@api.example.com/",
        "file:///etc/passwd",
        "ftp://api.example.com/",
        "https:///x",
        "api.example.com",
        "https://api.example.com:99999/",
        "https://api.example.com/a b",
        "https://api.example.com/\r\nHost: evil",
        "https://[::1",
        "https://api.example.com\u3002evil.org/",
    ],
)
def test_s2_24_every_other_address_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(ToolError):
        target_of(url, ALLOWED, resolving(PUBLIC))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "0.0.0.0",  # noqa: S104
        "100.64.0.1",
        "224.0.0.1",
        "::1",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:127.0.0.1",
        "2002:7f00:1::",
        "64:ff9b:1::1",
        "64:ff9b::7f00:1",
    ],
)
def test_s2_24_a_name_that_leads_to_a_private_address_is_refused(address: str) -> None:
    with pytest.raises(ToolError, match="which is refused"):
        target_of("https://api.example.com/", ALLOWED, resolving(address))
    with pytest.raises(ToolError, match="which is refused"):
        target_of("https://api.example.com/", ALLOWED, resolving(PUBLIC, address))


@given(st.ip_addresses(v=4, network="10.0.0.0/8") | st.ip_addresses(v=6, network="fc00::/7"))
def test_s2_24_no_private_address_is_ever_public(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    with pytest.raises(ToolError):
        target_of("https://api.example.com/", ALLOWED, resolving(str(address)))


def test_s2_24_a_name_without_an_address_is_refused() -> None:
    with pytest.raises(ToolError, match="no address"):
        target_of("https://api.example.com/", ALLOWED, resolving())


class Answers(BaseHTTPRequestHandler):
    """A small server: plain, redirecting, endless."""

    hosts: list[str] = []

    def do_GET(self) -> None:
        self.hosts.append(self.headers["Host"])
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "http://169.254.169.254/")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = b"x" * (web.MOST_BYTES + 10) if self.path == "/large" else b"hello"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            return

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def served() -> Iterator[Callable[[str], Target]]:
    """Makes a target of a path on a local server, past the check of its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    port = server.server_port

    def target(path: str) -> Target:
        url = urlsplit(f"http://named.example.com:{port}{path}")
        return Target(url=url, host="named.example.com", port=port, address="127.0.0.1")

    yield target
    server.shutdown()
    thread.join()
    server.server_close()


def test_s2_24_the_answer_comes_as_text_and_the_host_is_named(
    served: Callable[[str], Target],
) -> None:
    assert fetch(served("/a"), seconds=10) == "200\nhello"
    assert Answers.hosts[-1].startswith("named.example.com")


def test_s2_24_a_redirect_is_not_followed(served: Callable[[str], Target]) -> None:
    with pytest.raises(ToolError, match="redirects are not followed"):
        fetch(served("/redirect"), seconds=10)


def test_s2_24_a_large_answer_is_cut(served: Callable[[str], Target]) -> None:
    answer = fetch(served("/large"), seconds=10)
    assert len(answer) < web.MOST_BYTES + 100
    assert answer.endswith("[cut off]")


def test_s2_24_a_stopped_run_stops_the_request(served: Callable[[str], Target]) -> None:
    with pytest.raises(ToolError, match="too long"):
        fetch(served("/a"), seconds=10, cancelled=lambda: True)


def test_s2_24_nobody_listening_is_an_answer_for_the_plan() -> None:
    nobody = Target(
        url=urlsplit("http://named.example.com:1/"),
        host="named.example.com",
        port=1,
        address="127.0.0.1",
    )
    with pytest.raises(ToolError, match="no connection"):
        fetch(nobody, seconds=5)
