"""`manage.py resume`: let go on what was paused or stopped."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from loops.store.holds import RequestReused
from workers import stopping
from workers.management.holding import HoldingCommand


class Command(HoldingCommand):
    """Resumes a run, a project or everything; `--switch` releases the kill switch."""

    knows_switch = True
    help = "Let a run, a project or everything go on, or release the kill switch."

    def add_arguments(self, parser: CommandParser) -> None:
        """The targets of a pause, and the switch."""
        super().add_arguments(parser)
        parser.add_argument(
            "--seen", default="", help="only if the pause with this id still stands"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Resume and say what is true now."""
        target = self.target(options)
        try:
            lifted = stopping.resume(target, self.request(options), seen=options["seen"])
        except RequestReused as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{target.key} goes on." if lifted else f"{target.key}: nothing changed.")
