"""`manage.py drain WORKER`: let a worker take nothing new, so that it can be stopped in peace."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from loops.models import WorkerPresence
from loops.terminal import TerminalCommand
from workers import presence


class Command(TerminalCommand):
    """Drains a worker; `--undo` lets it take attempts again."""

    help = "Let a worker take no new attempt; those at work finish."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which worker."""
        parser.add_argument("worker", help="its name, as the Operations page shows it")
        parser.add_argument("--undo", action="store_true", help="let it take attempts again")

    def handle(self, *_args: Any, worker: str, undo: bool, **_options: Any) -> None:
        """Note it; the worker looks every few seconds."""
        found = presence.undrain(worker) if undo else presence.drain(worker)
        if not found:
            workers = WorkerPresence.objects.filter(kind="worker").order_by("name")
            known = ", ".join(workers.values_list("name", flat=True)) or "none"
            raise CommandError(f"there is no worker {worker}; there are: {known}")
        does = "takes attempts again" if undo else "takes nothing new"
        self.stdout.write(f"{worker} {does} within {presence.EVERY_SECONDS:g} s.")
