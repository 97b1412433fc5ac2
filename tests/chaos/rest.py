"""The REST API as a stubborn client uses it: the web process may die under any request."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from typing import Any

_PAUSE_SECONDS = 0.3
_PATIENCE_SECONDS = 120.0
_SECONDS = 10.0


class Api:
    """One token's view."""

    def __init__(self, address: str, token: str, stop: threading.Event) -> None:
        """Nothing more is asked once `stop` is set."""
        self._stop = stop
        self._base = f"{address}/api/v1/"
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(
        self, path: str, body: dict[str, Any] | None = None, *, key: str = ""
    ) -> tuple[int, dict[str, Any]]:
        """Ask until there is an answer that is one; its status and body. POST when `body`."""
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                status, answer = self._once(path, body, key)
                if status < 500:
                    return status, answer
            except (OSError, ValueError) as error:
                status, answer = 0, {"error": str(error)}
            if self._stop.wait(_PAUSE_SECONDS) or time.monotonic() > give_up:
                raise TimeoutError(f"{path}: no answer but {status} {answer}")

    def _once(self, path: str, body: dict[str, Any] | None, key: str) -> tuple[int, dict[str, Any]]:
        headers = self._headers | ({"Idempotency-Key": key} if key else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            return refusal.code, json.load(refusal)
