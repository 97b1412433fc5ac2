"""`manage.py specs`: what may stand in the spec of each pattern."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from dashboard.specs import reference
from loops.patterns import NAMES, get
from loops.terminal import TerminalCommand


class Command(TerminalCommand):
    """Prints the reference, for one pattern or for all as `docs/specs.md`."""

    help = "Name the fields of every pattern's spec: type, default and meaning."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which pattern."""
        parser.add_argument("pattern", nargs="?", choices=NAMES, help="only this one")

    def handle(self, *_args: Any, pattern: str | None, **_options: Any) -> None:
        """Print it."""
        self.stdout.write(reference([get(pattern)] if pattern else None), ending="")
