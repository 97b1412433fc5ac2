"""Keeps the head and the tail of a stream in bounded memory."""

from __future__ import annotations

from workers.text import clean_text

_CONTINUATION = range(0x80, 0xC0)


class Capture:
    """The first and the last half of `cap` bytes of what was added; the middle is counted only."""

    def __init__(self, cap: int) -> None:
        self._head_cap = cap // 2
        self._tail_cap = cap - self._head_cap
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total += len(chunk)
        room = self._head_cap - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk[-self._tail_cap :]
        del self._tail[: -self._tail_cap]

    def text(self) -> tuple[str, bool]:
        """The kept text, and whether something was left out (then the text says how much)."""
        kept = len(self._head) + len(self._tail)
        if kept == self.total:
            text = clean_text(bytes(self._head + self._tail))
            if len(text.encode()) <= self._head_cap + self._tail_cap:
                return text, False
        head, tail = self._sides()
        left_out = self.total - len(head.encode()) - len(tail.encode())
        return f"{head}\n[... {max(left_out, 1)} bytes left out ...]\n{tail}", True

    def _sides(self) -> tuple[str, str]:
        """Both ends, each within its half also after invalid bytes grew to U+FFFD."""
        head, tail = bytes(self._head), bytes(self._tail)
        clean_head = clean_text(head[: _whole(head)])
        start = next((i for i in range(min(4, len(tail))) if tail[i] not in _CONTINUATION), 0)
        clean_tail = clean_text(tail[start:])
        return (
            clean_head.encode()[: self._head_cap].decode("utf-8", "ignore"),
            clean_tail.encode()[-self._tail_cap :].decode("utf-8", "ignore"),
        )


def _whole(data: bytes) -> int:
    """Length without a character that the cut has split."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte not in _CONTINUATION:
            needed = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) if needed <= back else len(data) - back
    return len(data)
