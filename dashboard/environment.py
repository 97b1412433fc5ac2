"""Typed readers for the environment. A bad value stops the start with its name and the remedy."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

KNOWN: dict[str, str] = {
    "LOOPWARDEN_DATA": "folder for the database, workspaces, artifacts and sockets",
    "LOOPWARDEN_ARTIFACTS": "folder that all hosts share, or s3://bucket/prefix?endpoint=...",
    "LOOPWARDEN_CARRY_SOURCES": "1 packs repositories at submission, for hosts without them",
    "LOOPWARDEN_DEBUG": "1 shows error pages with details; never on a shared machine",
    "LOOPWARDEN_SECRET_KEY": "signs sessions; or LOOPWARDEN_SECRET_KEY_FILE",
    "LOOPWARDEN_SECRET_KEY_FILE": "file that holds the secret key",
    "LOOPWARDEN_HOSTS": "comma-separated host names that the pages answer to",
    "LOOPWARDEN_ORIGINS": "comma-separated full origins, such as https://loops.example.com",
    "LOOPWARDEN_PORT": "port of the web server that `make up` starts",
    "LOOPWARDEN_REPO_ROOTS": "colon-separated folders that repositories may be taken from",
    "LOOPWARDEN_CONTRACTS": "comma-separated name=module:function of loop contracts",
    "LOOPWARDEN_TOOLS": "comma-separated name:risk=module:function of tools for plans",
    "LOOPWARDEN_HTTP_HOSTS": "comma-separated hosts that a plan's http_get may read from",
    "LOOPWARDEN_LEASE_SECONDS": "how long a silent worker keeps its attempt",
    "LOOPWARDEN_COMMAND_SECONDS": "longest time that one command may run",
    "LOOPWARDEN_ATTEMPT_SECONDS": "longest time that one attempt may take",
    "LOOPWARDEN_GRACE_SECONDS": "how long a worker that is to stop lets its calls go on",
    "LOOPWARDEN_RETRY_SECONDS": "longest wait before an attempt that failed is repeated",
    "LOOPWARDEN_BREAKER_STRIKES": "overload answers in a row after which an agent profile rests",
    "LOOPWARDEN_POOL": "attempts that one worker process runs at once",
    "LOOPWARDEN_SLOTS": "attempts that run at once in all workers together",
    "LOOPWARDEN_SANDBOX": "auto, bubblewrap or none",
    "LOOPWARDEN_CRASHPOINT": "tests only: where a worker process ends itself",
}


def refuse_unknown(environ: Mapping[str, str] = os.environ) -> None:
    """A misspelt `LOOPWARDEN_` name is an error, or the setting would silently not hold."""
    unknown = sorted(n for n in environ if n.startswith("LOOPWARDEN_") and n not in KNOWN)
    if unknown:
        close = difflib.get_close_matches(unknown[0], KNOWN, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(sorted(KNOWN))}"
        raise ImproperlyConfigured(f"unknown setting {unknown[0]}; {hint}")


def text(name: str, default: str = "") -> str:
    """The value, or the contents of the file that `NAME_FILE` points to."""
    file = os.environ.get(f"{name}_FILE")
    if file:
        try:
            return Path(file).read_text().strip()
        except OSError as error:
            raise ImproperlyConfigured(f"{name}_FILE: cannot read {file}: {error}") from error
    return os.environ.get(name, default)


def flag(name: str, *, default: bool = False) -> bool:
    """1 or 0."""
    value = os.environ.get(name, "1" if default else "0")
    if value not in ("0", "1"):
        raise ImproperlyConfigured(f"{name} must be 1 or 0, not {value!r}")
    return value == "1"


def whole(name: str, default: int, *, least: int = 1, most: int = 10**9) -> int:
    """A whole number."""
    value = os.environ.get(name, str(default))
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise ImproperlyConfigured(
            f"{name} must be a whole number from {least} to {most}, not {value!r}"
        )
    return number


def choice(name: str, *choices: str) -> str:
    """One of the choices; the first is the default."""
    value = os.environ.get(name, choices[0])
    if value not in choices:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return value


def words(name: str, default: str = "", *, separator: str = ",") -> list[str]:
    """A list."""
    return [part.strip() for part in text(name, default).split(separator) if part.strip()]
