"""`manage.py stop-all`: the kill switch."""
# ruff: noqa: N999 - the command's name

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from loops.store.holds import RequestReused, Target
from workers import stopping
from workers.management.holding import HoldingCommand


class Command(HoldingCommand):
    """Stops every call and command within a second, until `resume --switch`."""

    help = "Stop every call and command now and start none, until `manage.py resume --switch`."

    def add_arguments(self, parser: CommandParser) -> None:
        """Why; the target is everything."""
        self.add_reason(parser)

    def handle(self, *_args: Any, **options: Any) -> None:
        """Stop and say how it goes on."""
        try:
            stopping.pause(Target(switch=True), self.request(options))
        except RequestReused as error:
            raise CommandError(str(error)) from error
        self.stdout.write("Everything is stopped. To let it go on: manage.py resume --switch")
