"""Bytes kept by their digest: transcripts, check output, packs of snapshots, patches."""

from __future__ import annotations

from django.db import models


class Artifact(models.Model):
    """One file in Django's storage. The digest is the SHA-256 of its bytes, in hex."""

    digest = models.CharField(max_length=64, primary_key=True)
    size = models.PositiveBigIntegerField()
    media_type = models.CharField(max_length=100, default="application/octet-stream")
    created_at = models.DateTimeField(auto_now_add=True)

    @property
    def path(self) -> str:
        """Where the bytes lie in the storage."""
        return f"{self.digest[:2]}/{self.digest[2:]}"
