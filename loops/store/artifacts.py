"""Keeps bytes by their digest."""

from __future__ import annotations

import hashlib

from django.core.files.base import ContentFile
from django.core.files.storage import default_storage

from loops.models import Artifact


def put(data: bytes, media_type: str = "application/octet-stream") -> str:
    """Store the bytes once and return their SHA-256 in hex."""
    digest = hashlib.sha256(data).hexdigest()
    artifact = Artifact(digest=digest, size=len(data), media_type=media_type)
    if not Artifact.objects.filter(digest=digest).exists():
        # The file first: a row without bytes would be a lie, bytes without a row are only waste.
        if not default_storage.exists(artifact.path):
            default_storage.save(artifact.path, ContentFile(data))
        Artifact.objects.bulk_create([artifact], ignore_conflicts=True)
    return digest


def put_text(text: str) -> str:
    """Store text as UTF-8."""
    return put(text.encode("utf-8", "replace"), "text/plain; charset=utf-8")


def get(digest: str) -> bytes:
    """The bytes of a digest. Raises `FileNotFoundError` when the storage has lost them."""
    with default_storage.open(Artifact(digest=digest, size=0).path, "rb") as file:
        return bytes(file.read())


def get_text(digest: str) -> str:
    """The text of a digest, empty for an empty digest."""
    return get(digest).decode("utf-8", "replace") if digest else ""
