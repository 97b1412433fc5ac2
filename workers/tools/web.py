"""HTTP GET to the hosts that the operator allows, and to nothing else."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from django.conf import settings
from pydantic import Field

from loops.core.plan import Risk
from workers.filetools import ToolArguments, ToolError
from workers.tools.base import Tool, ToolContext

MOST_BYTES = 1_000_000
MOST_SECONDS = 30.0
_PORTS = {"https": 443, "http": 80}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")
Resolve = Callable[[str, int], Iterable[str]]


class HttpGet(ToolArguments):
    """Read one address over HTTP. Redirects are not followed."""

    url: str = Field(max_length=2_000, description="An address on one of the allowed hosts.")


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a request goes: a host that is allowed, at an address that was looked at."""

    url: SplitResult
    host: str
    port: int
    address: str


def _resolve(host: str, port: int) -> Iterable[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ToolError(f"{host} cannot be resolved: {error}") from None
    return [str(entry[4][0]) for entry in found]


def target_of(url: str, allowed: Iterable[str], resolve: Resolve = _resolve) -> Target:
    """The target of the URL, or a `ToolError`.

    The connection is made to the very address that was checked, so a name that resolves to another
    one a moment later leads nowhere else.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        raise ToolError("that is no address") from None
    if any(char.isspace() or ord(char) < 33 for char in url) or not url.isascii():
        raise ToolError("an address has no white space and no other letters than ASCII's")
    if parts.username is not None or parts.password is not None:
        raise ToolError("an address with a user or a password is refused")
    if f"{parts.scheme}://{host}:{port}" not in {_origin(entry) for entry in allowed}:
        raise ToolError(f"{parts.scheme}://{host}:{port} is none of the allowed hosts")
    addresses = list(resolve(host, port))
    refused = [one for one in addresses if not _public(one)]
    if refused or not addresses:
        raise ToolError(f"{host} leads to {', '.join(refused) or 'no address'}, which is refused")
    return Target(url=parts, host=host, port=port, address=addresses[0])


def fetch(target: Target, *, seconds: float, cancelled: Callable[[], bool] = lambda: False) -> str:
    """The answer's body as text, at most `MOST_BYTES` of it, within `seconds` altogether."""
    deadline = time.monotonic() + min(seconds, MOST_SECONDS)
    connection = _connection(target, deadline)
    path = target.url.path or "/"
    path = f"{path}?{target.url.query}" if target.url.query else path
    try:
        connection.request("GET", path, headers={"Accept-Encoding": "identity"})
        answer = connection.getresponse()
        if 300 <= answer.status < 400:
            raise ToolError(f"{answer.status}: it redirects, and redirects are not followed")
        body = _body(answer, deadline, cancelled)
    except (OSError, http.client.HTTPException) as error:
        raise ToolError(f"no answer: {error or type(error).__name__}") from None
    finally:
        connection.close()
    cut = "\n[cut off]" if len(body) > MOST_BYTES else ""
    return f"{answer.status}\n{body[:MOST_BYTES].decode('utf-8', 'replace')}{cut}"


def _get(context: ToolContext, given: HttpGet) -> str:
    target = target_of(given.url, settings.LOOPWARDEN_HTTP_HOSTS)
    return fetch(target, seconds=context.seconds, cancelled=context.cancelled.is_set)


def _origin(entry: str) -> str:
    """`host` and `host:port` mean https; plain http must be said."""
    parts = urlsplit(entry if "://" in entry else f"https://{entry}")
    host, port = (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme, 0)
    return f"{parts.scheme}://{host}:{port}"


def _public(address: str) -> bool:
    """Whether the address, and the one that it may hold inside, belongs to the open internet."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if not found.is_global or found.is_multicast or found in _LOCAL_NAT64:
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return True
    inner = found.ipv4_mapped or found.sixtofour
    if found in _NAT64:
        inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return inner is None or _public(str(inner))


def _connection(target: Target, deadline: float) -> http.client.HTTPConnection:
    left = max(0.1, deadline - time.monotonic())
    connection = http.client.HTTPConnection(target.host, target.port, timeout=left)
    try:
        sock = socket.create_connection((target.address, target.port), timeout=left)
        if target.url.scheme == "https":
            tls = ssl.create_default_context()
            sock = tls.wrap_socket(sock, server_hostname=target.host)
    except OSError as error:
        raise ToolError(f"no connection: {error}") from None
    connection.sock = sock
    return connection


def _body(
    answer: http.client.HTTPResponse, deadline: float, cancelled: Callable[[], bool]
) -> bytes:
    """Read in pieces, so that a slow server cannot stretch the time."""
    body = b""
    while len(body) <= MOST_BYTES:
        if cancelled() or time.monotonic() > deadline:
            raise ToolError("it took too long")
        piece = answer.read1(65_536)
        if not piece:
            break
        body += piece
    return body


HTTP_GET = Tool(
    name="http_get",
    about=(HttpGet.__doc__ or "").strip(),
    risk=Risk.READ,
    arguments=HttpGet,
    run=_get,
    most_seconds=MOST_SECONDS,
    needs="hosts",
)
