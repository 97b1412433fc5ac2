"""What can go wrong between us and a model server, and what is known to be billed for it."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loops.core.errors import AgentFault, AgentUnusable
from loops.core.text import clean

if TYPE_CHECKING:
    import anthropic

_SHOWN_CHARACTERS = 300
# Refused before any work was done, so nothing is billed.
_UNBILLED = frozenset({400, 401, 402, 403, 404, 405, 413, 422, 429, 529})
# Refused for a reason that passes: a slow connection, a conflict, a replay that came too early.
_PASSING = frozenset({408, 409, 425})
_STATUS_OF = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
}
_REMEDIES = {
    400: "Change what its profile sets, or the task.",
    401: "Give the workers a valid key.",
    402: "Settle the account's bill.",
    403: "Give the workers a key that may use this model, or name another model.",
    404: "Correct model and base_url in its profile.",
    413: "Shorten the task or what the agent reads.",
    422: "Change what its profile sets, or the task.",
}
_OTHER_REMEDY = "Correct base_url in its profile."
_NOTHING: dict[str, Any] = {"tokens": 0, "cost_microusd": 0}


class KeyMissing(AgentUnusable):
    """The environment of the worker holds no key for this agent."""


class RequestRefused(AgentUnusable):
    """The model server refuses the request as it is."""


class NotNow(AgentFault):
    """The model server did not take the request this time."""


class Busy(AgentFault):
    """The model server cannot take the request now; later it may."""


class RateLimited(Busy):
    """The model server asks to wait."""


class Overloaded(Busy):
    """The model server is overloaded."""


class ServerFault(AgentFault):
    """The model server failed."""


class Unreachable(AgentFault):
    """The model server could not be reached."""


class ConnectionLost(AgentFault):
    """The connection to the model server broke before the answer was complete."""


class MalformedAnswer(AgentFault):
    """The model server's answer does not keep to the protocol."""


def key_missing(name: str) -> KeyMissing:
    """The fault that names the variable to set."""
    return KeyMissing(f"The worker's environment has no {name}: set it to the API key.", **_NOTHING)


def fault_of(error: Exception, *, secret: str) -> AgentFault:
    """An exception of the SDK as a fault. The secret is taken out of what the server said."""
    import anthropic  # noqa: PLC0415
    import httpx2  # noqa: PLC0415

    if isinstance(error, anthropic.APIStatusError):
        return _of_status(error, secret)
    if isinstance(error, anthropic.APIConnectionError):
        unsent = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
        if isinstance(error.__cause__, unsent):
            return Unreachable(**_NOTHING)
        return ConnectionLost()
    if isinstance(error, httpx2.HTTPError):
        return ConnectionLost()
    # Its message may quote the answer, and with it what the model thought.
    return MalformedAnswer()


def _of_status(error: anthropic.APIStatusError, secret: str) -> AgentFault:
    status, kind = error.status_code, str(error.type or "")
    said = clean(error.api_message or "").replace(secret, "[key]")[:_SHOWN_CHARACTERS]
    # An error in the middle of a stream comes after the status of a success.
    shown = "" if status == 200 else f"HTTP {status}"
    message = " ".join(part for part in (shown, kind, said) if part)
    billed: dict[str, Any] = _NOTHING if status in _UNBILLED else {}
    if status == 200:
        status = _STATUS_OF.get(kind, status)
    wait = _retry_after(error.response.headers)
    if status == 429 or kind == "rate_limit_error":
        return RateLimited(f"{RateLimited.__doc__} {message}", retry_after=wait, **billed)
    if status == 529 or kind == "overloaded_error":
        return Overloaded(f"{Overloaded.__doc__} {message}", retry_after=wait, **billed)
    if status in _PASSING:
        return NotNow(f"{NotNow.__doc__} {message}", retry_after=wait, **billed)
    if 400 <= status < 500:
        remedy = _REMEDIES.get(status, _OTHER_REMEDY)
        return RequestRefused(f"{RequestRefused.__doc__} {message}. {remedy}", **billed)
    return ServerFault(f"{ServerFault.__doc__} {message}", retry_after=wait, **billed)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from a number or a date. A date is held against the server's own clock."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            sent = _moment(headers["date"]) if "date" in headers else time.time()
            seconds = _moment(value) - sent
        except ValueError:
            return None
    return seconds if 0 <= seconds < float("inf") else None


def _moment(value: str) -> float:
    return email.utils.parsedate_to_datetime(value).timestamp()
