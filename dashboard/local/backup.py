"""A backup of database and artifacts while everything runs, and how it is put back."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import connection

from loops.models import Artifact

FORMAT = 1


class BackupFault(Exception):
    """The backup cannot be made, or not be put back. The message names the remedy."""


def back_up(folder: Path) -> int:
    """Write a backup into a new folder. Returns how many artifacts it holds.

    The database comes first, then the artifacts: they are written before the rows that name them
    and never change, so whatever the copied rows name is there. The manifest comes last; a folder
    without one is no backup.
    """
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        raise BackupFault(f"{folder} exists already: name a new folder") from error
    _dump(folder)
    held = 0
    for artifact in Artifact.objects.only("digest").iterator():
        _copy_out(artifact, folder / "artifacts" / artifact.path)
        held += 1
    facts = {
        "format": FORMAT,
        "engine": connection.vendor,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "artifacts": held,
    }
    (folder / "manifest.json").write_text(json.dumps(facts, indent=2) + "\n")
    return held


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the backup says of itself. Raises `BackupFault` when it cannot be put back here."""
    try:
        facts: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        raise BackupFault(f"{folder} is no complete backup: it has no manifest.json") from error
    if facts.get("format") != FORMAT:
        raise BackupFault(f"{folder} has format {facts.get('format')!r}, this version reads 1")
    if facts.get("engine") != connection.vendor:
        raise BackupFault(
            f"{folder} holds a {facts.get('engine')} database: set DATABASE_URL to one of its kind"
        )
    return facts


def put_back(folder: Path) -> int:
    """Load a backup into an empty database and the storage. Returns the number of artifacts."""
    files = _whole(folder, read_manifest(folder)["artifacts"])
    if connection.introspection.table_names():
        raise BackupFault("the database is not empty: name a new one by DATABASE_URL")
    for file in files:
        path = str(file.relative_to(folder / "artifacts"))
        if not default_storage.exists(path):
            default_storage.save(path, ContentFile(file.read_bytes()))
    _load(folder)
    return len(files)


def _whole(folder: Path, expected: int) -> list[Path]:
    """The artifact files of a backup, if none lacks and each is what its name says."""
    files = [file for file in (folder / "artifacts").rglob("*") if file.is_file()]
    damaged = [file for file in files if _digest(file.read_bytes()) != _name(file)]
    if damaged or len(files) != expected:
        what = f"{damaged[0]} is damaged" if damaged else f"{expected - len(files)} artifacts lack"
        raise BackupFault(f"{folder} is not whole: {what}. Take another backup.")
    return files


def _dump(folder: Path) -> None:
    if connection.vendor == "sqlite":
        with closing(sqlite3.connect(folder / "database.sqlite3")) as copy:
            connection.ensure_connection()
            connection.connection.backup(copy)
        return
    _run("pg_dump", "--format=custom", "--no-owner", "--file", str(folder / "database.dump"))


def _load(folder: Path) -> None:
    if connection.vendor == "sqlite":
        with closing(sqlite3.connect(folder / "database.sqlite3")) as copy:
            connection.ensure_connection()
            copy.backup(connection.connection)
        connection.close()
        return
    name = str(connection.settings_dict["NAME"])
    dump = folder / "database.dump"
    _run("pg_restore", "--no-owner", "--exit-on-error", "--single-transaction", "-d", name, dump)


def _run(program: str, *args: str | Path) -> None:
    """A program of PostgreSQL on our database; it finds the address in its environment."""
    found = shutil.which(program)
    if found is None:
        raise BackupFault(f"{program} is not on PATH: install PostgreSQL's client programs")
    facts = connection.settings_dict
    names = {"PGHOST": "HOST", "PGPORT": "PORT", "PGUSER": "USER", "PGPASSWORD": "PASSWORD"}
    env = {name: str(facts[key]) for name, key in names.items() if facts[key]}
    done = subprocess.run(
        [found, *map(str, args)],
        env={**os.environ, "PGDATABASE": str(facts["NAME"]), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BackupFault(f"{program} failed: {done.stderr.strip()}")


def _copy_out(artifact: Artifact, target: Path) -> None:
    with default_storage.open(artifact.path, "rb") as file:
        data = file.read()
    if _digest(data) != artifact.digest:
        raise BackupFault(f"artifact {artifact.digest} is damaged in the storage")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _name(file: Path) -> str:
    return f"{file.parent.name}{file.name}"
