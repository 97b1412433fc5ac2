"""The web server's port: is it free, and does the page answer."""

from __future__ import annotations

import http.client
import socket

from dashboard.local.errors import CannotStart

ANSWER_SECONDS = 2.0


def require_free(host: str, port: int) -> None:
    """Raise `CannotStart` when the port cannot be bound."""
    try:
        with socket.socket(_family(host)) as probe:
            # As the web server does: a port in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise CannotStart(
            f"cannot use port {port} on {host}: {why}. Stop the program that has it, or choose"
            f" another with LOOPWARDEN_PORT (make up PORT={port + 1})."
        ) from error


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nothing listens on right now."""
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def answers(host: str, port: int, path: str = "/") -> bool:
    """Whether a page comes back that is no server error."""
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < http.client.INTERNAL_SERVER_ERROR
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
