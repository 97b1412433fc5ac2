"""Where artifacts are kept: a folder that all hosts share, or a bucket that speaks S3."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.core.exceptions import ImproperlyConfigured

_S3_OPTIONS = {"endpoint": "endpoint_url", "region": "region_name"}


def artifact_storage(wanted: str, usual: Path) -> tuple[dict[str, Any], Path]:
    """Django's storage for `LOOPWARDEN_ARTIFACTS`, and the folder of it on this host.

    `wanted` is empty, a folder, or `s3://bucket/prefix?endpoint=https://...&region=...`; the keys
    of a bucket come from the environment, as boto3 reads it. Raises `ImproperlyConfigured`.
    """
    url = urlsplit(wanted)
    if url.scheme == "s3":
        return _bucket(wanted), usual
    if url.scheme:
        raise ImproperlyConfigured(
            f"LOOPWARDEN_ARTIFACTS must be a folder or s3://bucket/prefix, not {wanted!r}"
        )
    folder = Path(wanted).absolute() if wanted else usual
    options = {"location": str(folder)}
    return {"BACKEND": "loops.store.files.WholeFiles", "OPTIONS": options}, folder


def _bucket(wanted: str) -> dict[str, Any]:
    if importlib.util.find_spec("storages") is None:
        raise ImproperlyConfigured(
            "LOOPWARDEN_ARTIFACTS names a bucket: install it with pip install 'loopwarden[s3]'"
        )
    url = urlsplit(wanted)
    asked = parse_qs(url.query, keep_blank_values=True)
    unknown = sorted(set(asked) - set(_S3_OPTIONS))
    if unknown or not url.netloc:
        wrong = f"knows no {unknown[0]!r}" if unknown else "names no bucket"
        raise ImproperlyConfigured(
            f"LOOPWARDEN_ARTIFACTS {wrong}: write s3://bucket/prefix?endpoint=...&region=..."
        )
    options: dict[str, Any] = {
        "bucket_name": url.netloc,
        "location": url.path.strip("/"),
        # Names are digests: whoever writes one again writes the same bytes.
        "file_overwrite": True,
        "default_acl": None,
    }
    options |= {_S3_OPTIONS[name]: values[-1] for name, values in asked.items()}
    return {"BACKEND": "storages.backends.s3.S3Storage", "OPTIONS": options}
