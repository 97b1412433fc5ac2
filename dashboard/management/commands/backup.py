"""`manage.py backup FOLDER`: database and artifacts, while everything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from dashboard.local.backup import BackupFault, back_up
from loops.terminal import TerminalCommand


class Command(TerminalCommand):
    help = "Copy the database and all artifacts into a new folder. Nothing has to stop."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, help="is made; must not exist yet")

    def handle(self, *_args: Any, folder: Path, **_options: Any) -> None:
        try:
            held = back_up(folder.absolute())
        except BackupFault as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{folder}: the database and {held} artifacts")
