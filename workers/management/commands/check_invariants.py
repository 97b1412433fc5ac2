"""`manage.py check_invariants`: whether what is stored is what the protocol promises."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from loops import invariants
from loops.core.errors import ContractError
from loops.invariants import Violation
from loops.terminal import TerminalCommand
from workers import processes

_CODES = [f"I{number}" for number in range(1, 12)]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ArgumentTypeError(f"must be a whole number of 1 or more, not {text!r}")
    return int(text)


class Command(TerminalCommand):
    """Ends with 0 when every invariant holds, else with 1."""

    help = (
        "Check the invariants I1 to I11 on the stored rows and on this host's processes. It only"
        " reads, and may run beside the work."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What to compare with, and how to say it."""
        parser.add_argument(
            "--books",
            type=Path,
            metavar="FILE",
            help='what the provider billed: {"RUN": {"model_calls", "tokens", "cost_microusd"}}',
        )
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.add_argument(
            "--most", type=_count, default=20, help="print so many rows of each rule (20)"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Look, print, leave."""
        most: int = options["most"]
        books = _books(options["books"]) if options["books"] else None
        found = invariants.check(most=most)
        if books is not None:
            try:
                found += invariants.check_books(books, most=most)
            except ContractError as error:
                raise CommandError(f"--books: {error}") from error
        found += processes.check()[:most]
        unchecked = [] if books is not None else ["I4"]
        say = self._print_json if options["json"] else self._print_table
        say(found, unchecked)
        if found:
            sys.exit(1)

    def _print_json(self, found: list[Violation], unchecked: list[str]) -> None:
        document = {
            "holds": not found,
            "unchecked": unchecked,
            "violations": [asdict(violation) for violation in found],
        }
        self.stdout.write(json.dumps(document, indent=2))

    def _print_table(self, found: list[Violation], unchecked: list[str]) -> None:
        for code in _CODES:
            broken = [violation for violation in found if violation.code == code]
            word = (
                "broken" if broken else "not checked, give --books" if code in unchecked else "ok"
            )
            self.stdout.write(f"{code:<4} {word}")
            for violation in broken:
                self.stdout.write(f"     {violation.subject} {violation.found}. {violation.rule}")


def _books(path: Path) -> dict[int, dict[str, int]]:
    try:
        return {int(run): dict(billed) for run, billed in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CommandError(
            f"--books: {path} must hold a JSON object of runs and what each was billed: {error}"
        ) from error
