"""`manage.py pause`: let nothing new start; what runs finishes its attempt."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from loops.store.holds import AlreadyEnded, RequestReused
from workers import stopping
from workers.management.holding import HoldingCommand


class Command(HoldingCommand):
    """Pauses a run, a project or everything."""

    help = "Pause a run, a project or everything: attempts at work finish, none starts."

    def handle(self, *_args: Any, **options: Any) -> None:
        """Pause and say so."""
        target = self.target(options)
        try:
            stopping.pause(target, self.request(options))
        except (AlreadyEnded, RequestReused) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{target.key} is paused.")
