"""An external system with effects, a process with books of its own.

It does what it is asked as often as it is asked: if the product sent a key twice, its book shows
the key twice. Sometimes the line breaks, before or after it has paid.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.chaos.books import Book

ADDRESS = "CHAOS_BANK"
"""The environment variable with its address, for the tools."""
TOOLS = "pay:high_impact=tests.chaos.tools:pay,move:reversible_write=tests.chaos.tools:pay_and_ask"
BREAKS_BEFORE, BREAKS_AFTER = 0.05, 0.08


class Bank(ThreadingHTTPServer):
    """POST pays, GET says whether a key was paid."""

    request_queue_size = 128

    def __init__(self, seed: int, book: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seed = seed
        self.book = Book(book)
        self.paid: set[str] = set()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed has hung up."""


class _Handler(BaseHTTPRequestHandler):
    server: Bank

    def do_POST(self) -> None:
        key = self.headers["Idempotency-Key"]
        payment = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        use = key.split("-", 2)[2]
        dice = random.Random(f"{self.server.seed} {payment['task']} {use}")
        breaks = dice.random()
        time.sleep(dice.uniform(0.02, 0.2))
        if breaks < BREAKS_BEFORE:
            return
        self.server.paid.add(key)
        self.server.book.write(key=key, **payment)
        if breaks > 1 - BREAKS_AFTER:
            return
        time.sleep(dice.uniform(0.02, 0.1))
        self._say({"receipt": key})

    def do_GET(self) -> None:
        self._say({"paid": self.path.removeprefix("/") in self.server.paid})

    def _say(self, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing on standard error."""


def main(seed: str, book: str, address: str) -> None:
    """Serve until the process is ended; the address goes into a file once it listens."""
    bank = Bank(int(seed), Path(book))
    threading.Thread(target=bank.serve_forever, daemon=True).start()
    Path(f"{address}.new").write_text(f"http://127.0.0.1:{bank.server_port}")
    Path(f"{address}.new").rename(address)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
