"""A book that only grows: the truth of a process outside of the system."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any


class Book:
    """Lines of JSON in a file. What is written is there even if the writer dies next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def write(self, **entry: Any) -> None:
        """Add one entry."""
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def entries(path: Path) -> list[dict[str, Any]]:
    """All entries so far; a line that is being written does not count yet."""
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]
