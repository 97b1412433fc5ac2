"""Where artifacts are kept, from one setting."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from dashboard.storage import artifact_storage

USUAL = Path("/data/artifacts")


def test_without_a_setting_it_is_the_data_folder() -> None:
    storage, folder = artifact_storage("", USUAL)
    assert (storage["OPTIONS"], folder) == ({"location": "/data/artifacts"}, USUAL)


def test_a_folder_may_be_shared() -> None:
    storage, folder = artifact_storage("/mnt/shared", USUAL)
    assert (storage["OPTIONS"], folder) == ({"location": "/mnt/shared"}, Path("/mnt/shared"))


def test_a_bucket_has_prefix_endpoint_and_region() -> None:
    storage, _ = artifact_storage("s3://b/p/q?endpoint=https://s3.example.test&region=eu-1", USUAL)
    assert storage["OPTIONS"] == {
        "bucket_name": "b",
        "location": "p/q",
        "file_overwrite": True,
        "default_acl": None,
        "endpoint_url": "https://s3.example.test",
        "region_name": "eu-1",
    }


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("ftp://b", "must be a folder or s3://bucket/prefix"),
        ("s3:///p", "names no bucket"),
        ("s3://b?key=secret", "knows no 'key'"),
    ],
)
def test_what_it_cannot_be_is_said(wanted: str, says: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=says):
        artifact_storage(wanted, USUAL)
