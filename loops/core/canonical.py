"""One spelling for one value, so that a digest binds a decision to exactly what was shown."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from typing import Any

from loops.core.errors import ContractError


def canonical(value: Any) -> str:
    """The value as JSON with sorted keys, NFC text and no white space.

    Raises `ContractError` for floats and anything else that JSON cannot spell in one way only.
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON, in hex (S2-G4)."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int():
            return value
        case str():
            return unicodedata.normalize("NFC", value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return {_key(key): _plain(item) for key, item in value.items()}
    raise ContractError(
        f"{type(value).__name__} has no canonical form; use text, int, list or dict"
    )


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ContractError(f"keys must be text, not {key!r}")
    return unicodedata.normalize("NFC", key)
