"""One use of a tool of the operator's own, as a program of its own. `tools/apart.py` starts it.

    python -P -m workers.tool_process FOLDER

FOLDER holds `request.json`; the answer is put there as `answer.json`. Once there is a file
`cancelled`, the tool's `cancelled` is set.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import django

# The tool may use the database; and what it imports of ours needs the models.
django.setup()

from workers.filetools import ToolError  # noqa: E402
from workers.tools.base import ToolContext, arguments_of  # noqa: E402

_POLL_SECONDS = 0.05


def main(folder: Path) -> None:
    """Use the tool, write down what came of it, and leave at once, whatever still runs."""
    request = json.loads((folder / "request.json").read_text())
    written = folder / "answer.part"
    written.write_text(json.dumps(_answer(request, folder)))
    written.rename(folder / "answer.json")
    sys.stdout.flush()
    os._exit(0)


def _answer(request: dict[str, Any], folder: Path) -> dict[str, str]:
    """Only what fails before the tool begins, and a `ToolError`, is surely without effect."""
    try:
        function, arguments = _loaded(request)
    except Exception as error:
        return {"refused": f"It cannot be loaded: {type(error).__name__}: {error}"}
    cancelled = threading.Event()
    threading.Thread(target=_hear, args=(folder / "cancelled", cancelled), daemon=True).start()
    context = ToolContext(
        folder=Path(request["folder"]),
        idempotency_key=request["key"],
        seconds=request["seconds"],
        cancelled=cancelled,
    )
    try:
        return {"said": str(function(context, arguments))}
    except ToolError as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"raised": str(error), "code": type(error).__name__}


def _loaded(request: dict[str, Any]) -> tuple[Any, Any]:
    """The function, or its probe, and its arguments."""
    module, _, name = request["target"].partition(":")
    function = getattr(import_module(module), name)
    arguments = arguments_of(name, function).model_validate_json(request["arguments"])
    return (function.probe if request["probe"] else function), arguments


def _hear(marker: Path, cancelled: threading.Event) -> None:
    while not marker.exists():
        cancelled.wait(_POLL_SECONDS)
    cancelled.set()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
