"""Where artifacts lie on this machine: each of them whole, or not there at all."""

from __future__ import annotations

import secrets
from pathlib import Path

from django.core.files.base import File
from django.core.files.storage import FileSystemStorage


class WholeFiles(FileSystemStorage):
    """Writes beside the name and moves into place.

    A full disk or a worker killed in between would leave a part under the name, and every later
    `put` would take it for the artifact.
    """

    def _save(self, name: str, content: File[bytes]) -> str:
        part = f"{name}.{secrets.token_hex(4)}.part"
        try:
            super()._save(part, content)  # type: ignore[misc] # django-stubs leave it out
            Path(self.path(part)).replace(self.path(name))
        finally:
            Path(self.path(part)).unlink(missing_ok=True)
        return name
