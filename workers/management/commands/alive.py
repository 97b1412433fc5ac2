"""`manage.py alive KIND`: for health checks of containers."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from loops.terminal import TerminalCommand
from workers import presence


class Command(TerminalCommand):
    """Ends with 0 when a worker or tender on this host was seen lately, else with 1."""

    help = "Exit with 0 when a process of this kind on this host was seen in the last 30 seconds."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which kind."""
        parser.add_argument("kind", choices=["worker", "tender"])

    def handle(self, *_args: Any, **options: Any) -> None:
        """Look and leave."""
        sys.exit(0 if presence.alive_here(options["kind"]) else 1)
