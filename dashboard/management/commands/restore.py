"""`manage.py restore FOLDER`: a backup into an empty database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis
from django.core.management import call_command
from django.core.management.base import CommandError, CommandParser

from dashboard.local.backup import BackupFault, put_back
from loops.store import runs
from loops.terminal import TerminalCommand
from workers import budgets, slots


class Command(TerminalCommand):
    help = "Put a backup into an empty database. Stop all workers first."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", type=Path, help="as `manage.py backup` made it")

    def handle(self, *_args: Any, folder: Path, **_options: Any) -> None:
        try:
            held = put_back(folder.absolute())
        except BackupFault as error:
            raise CommandError(str(error)) from error
        call_command("migrate", interactive=False, verbosity=0)
        fenced = runs.fence_all()
        try:
            budgets.forget_all()
            slots.forget_all()
        except redis.RedisError:
            self.stdout.write("Redis is not running: one that holds data of before must be empty.")
        self.stdout.write(
            f"restored the database and {held} artifacts; {fenced} runs go on where the backup"
            " found them. What they did after it is not known here."
        )
