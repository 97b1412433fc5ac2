"""A server that speaks the Messages API over real HTTP, answers by a script and keeps its books.

What it bills is written down before the first byte of the answer goes out, as a provider would.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Block = dict[str, Any]
USAGE = {"input_tokens": 1000, "output_tokens": 100}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer: content, how it stops, and how it misbehaves."""

    content: tuple[Block, ...] = ()
    stop: str | None = "end_turn"
    details: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] = field(default_factory=lambda: USAGE)
    status: int = 200
    kind: str = "api_error"
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str = "as scripted"
    body: bytes | None = None
    """Sent as it is, as an event stream."""
    cut: bool = False
    """Close the connection in the middle."""
    hang: bool = False
    """Say nothing at all."""
    drip_seconds: float | None = None
    """Send a ping that often and never come to an end."""
    error_event: str = ""
    """An error in the middle of the stream."""


def says(text: str, **facts: Any) -> Answer:
    """A plain text answer."""
    return Answer(content=({"type": "text", "text": text},), **facts)


def thinks(thought: str, text: str, **facts: Any) -> Answer:
    """A signed thinking block before the text."""
    thinking = {"type": "thinking", "thinking": thought, "signature": f"sig-{len(thought)}"}
    return Answer(content=(thinking, {"type": "text", "text": text}), **facts)


def wants(*calls: tuple[str, dict[str, Any]], text: str = "", **facts: Any) -> Answer:
    """Tool calls, with ids by their place."""
    said = ({"type": "text", "text": text},) if text else ()
    tools = tuple(
        {"type": "tool_use", "id": f"toolu_{place}_{name}", "name": name, "input": arguments}
        for place, (name, arguments) in enumerate(calls)
    )
    return Answer(content=(*said, *tools), stop="tool_use", **facts)


def fails(status: int, kind: str = "api_error", **facts: Any) -> Answer:
    """An HTTP error. Nothing is billed for it."""
    return Answer(status=status, kind=kind, usage={}, **facts)


@dataclass(frozen=True)
class Request:
    """What came in."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    raw: bytes


class MessagesServer:
    """Answers in the order of its script; `books` is what it billed, a usage per answer."""

    def __init__(self, *answers: Answer | Callable[[Request], Answer], tokens: int = 7) -> None:
        self.answers = deque(answers)
        self.counted_tokens = tokens
        self.requests: list[Request] = []
        self.books: list[Mapping[str, Any]] = []
        self.connections = 0
        self.stopping = threading.Event()
        self.hanging = threading.Event()
        """Set once a request is left without an answer."""
        self._lock = threading.Lock()
        self._http = _Http(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """Its base address."""
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def messages(self) -> list[Request]:
        """The requests for messages, without counted tokens."""
        return [request for request in self.requests if request.path == "/v1/messages"]

    def billed(self, *names: str) -> int:
        """The sum of these counts over the books."""
        return sum(usage.get(name) or 0 for usage in self.books for name in names)

    def next_answer(self, request: Request) -> Answer:
        """The answer to this request, entered into the books."""
        with self._lock:
            self.requests.append(request)
            if not self.answers:
                return fails(500, message="the script has no answer left")
            answer = self.answers.popleft()
            answer = answer if isinstance(answer, Answer) else answer(request)
            if answer.usage:
                self.books.append(answer.usage)
            return answer

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Http(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what many of the tests are about."""


def _handler_of(server: MessagesServer) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"owner": server})


class _Handler(BaseHTTPRequestHandler):
    owner: MessagesServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 0.2

    def setup(self) -> None:
        super().setup()
        self.owner.connections += 1

    def handle(self) -> None:
        """Keep the connection until the client closes it or the server stops."""
        self.close_connection = False
        while not self.close_connection and not self.owner.stopping.is_set():
            try:
                if not self.connection.recv(1, socket.MSG_PEEK):
                    return
            except TimeoutError:
                continue
            self.handle_one_request()

    def log_message(self, *_: Any) -> None:
        """Nothing on standard error."""

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        request = Request(self.path, dict(self.headers), json.loads(raw), raw)
        if self.path.endswith("/count_tokens"):
            self.owner.requests.append(request)
            self._json(200, {"input_tokens": self.owner.counted_tokens})
            return
        answer = self.owner.next_answer(request)
        if answer.hang:
            self.owner.hanging.set()
            self._until_gone()
        elif answer.status != 200:
            error = {"type": answer.kind, "message": answer.message}
            self._json(answer.status, {"type": "error", "error": error}, answer.headers)
        elif request.body.get("stream"):
            self._stream(answer, request)
        else:
            self._json(200, _message(answer, request) | {"content": list(answer.content)})

    def _json(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, answer: Answer, request: Request) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if answer.body is not None:
            self._chunk(answer.body)
        else:
            for event in _events(answer, request):
                self._chunk(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        if answer.drip_seconds is not None:
            self._drip(answer.drip_seconds)
        if answer.cut:
            self.close_connection = True
            return
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _drip(self, seconds: float) -> None:
        try:
            while not self.owner.stopping.wait(seconds):
                self._chunk(b'event: ping\ndata: {"type": "ping"}\n\n')
        except OSError:
            self.close_connection = True

    def _until_gone(self) -> None:
        """Wait until the client hangs up."""
        self.close_connection = True
        while not self.owner.stopping.is_set():
            try:
                if not self.connection.recv(1, socket.MSG_PEEK):
                    return
            except TimeoutError:
                continue
            except OSError:
                return


def _message(answer: Answer, request: Request) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": request.body["model"],
        "content": [],
        "stop_reason": answer.stop,
        "stop_sequence": None,
        "stop_details": answer.details,
        "usage": dict(answer.usage),
    }


def _events(answer: Answer, request: Request) -> Iterator[dict[str, Any]]:
    """The events of a stream, up to where it is to break."""
    started = _message(answer, request) | {"stop_reason": None, "stop_details": None}
    yield {"type": "message_start", "message": started}
    for index, block in enumerate(answer.content):
        yield from _block_events(index, block)
    if answer.error_event:
        yield {"type": "error", "error": {"type": answer.error_event, "message": answer.message}}
    if answer.cut or answer.drip_seconds is not None or answer.error_event:
        return
    delta = {"stop_reason": answer.stop, "stop_sequence": None, "stop_details": answer.details}
    counts = {name: n for name, n in answer.usage.items() if name == "output_tokens"}
    yield {"type": "message_delta", "delta": delta, "usage": counts}
    yield {"type": "message_stop"}


_DELTAS = {"text": "text", "thinking": "thinking"}


def _block_events(index: int, block: Block) -> Iterator[dict[str, Any]]:
    kind = block["type"]
    start, deltas = dict(block), []
    if kind in _DELTAS:
        text, start[kind] = block[kind], ""
        half = len(text) // 2
        deltas = [{"type": f"{kind}_delta", kind: part} for part in (text[:half], text[half:])]
    if kind == "thinking":
        start["signature"] = ""
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    if kind == "tool_use":
        start["input"] = {}
        text = json.dumps(block["input"])
        deltas = [
            {"type": "input_json_delta", "partial_json": part} for part in (text[:5], text[5:])
        ]
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}
