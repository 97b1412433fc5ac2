"""A child: writes its pid, then serves, waits, fails or refuses to stop.

Usage: standin.py FOLDER NAME serve PORT | wait | fail | stubborn
"""

from __future__ import annotations

import http.server
import os
import signal
import sys
from pathlib import Path


def main(folder: Path, name: str, what: str, *rest: str) -> None:
    (folder / f"{name}.pid").write_text(str(os.getpid()))
    with (folder / f"{name}.starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    if what == "fail":
        sys.exit(f"{name}: no such thing as a module")
    stubborn = what == "stubborn"
    signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else lambda *_: stop(folder, name))
    if what == "serve":
        address = ("127.0.0.1", int(rest[0]))
        http.server.HTTPServer(address, http.server.SimpleHTTPRequestHandler).serve_forever()
    while True:
        signal.pause()


def stop(folder: Path, name: str) -> None:
    with (folder / "stopped").open("a") as order:
        order.write(f"{name}\n")
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
