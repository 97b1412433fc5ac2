"""Where the embedded Valkey of a data folder listens: on a unix socket only.

The socket is `valkey.sock` in the data folder. A path too long for the kernel moves to a folder
under /tmp whose name follows from the data folder, so that every process finds it without asking.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from urllib.parse import quote

SOCKET_PATH_BYTES = 100
SHORT_ROOT = Path("/tmp")  # noqa: S108 - the server checks that the folder in it is ours alone


def socket_path(folder: Path) -> Path:
    """Where the server of this data folder listens."""
    path = folder.absolute() / "valkey.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return path
    name = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]
    return SHORT_ROOT / f"loopwarden-{os.geteuid()}-{name}" / "valkey.sock"


def socket_url(folder: Path) -> str:
    """The address of this data folder's server, as redis-py and Channels spell it."""
    return f"unix://{quote(str(socket_path(folder)))}?db=0"
