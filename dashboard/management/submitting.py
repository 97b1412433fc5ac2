"""What the commands that submit have in common: one story from the request to the exit status."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.core.management.base import CommandError
from django.db import OperationalError

from dashboard.local.database import prepare_database
from dashboard.local.errors import CannotStart
from dashboard.local.stack import goes_on, local_stack, something_works
from dashboard.local.supervisor import Supervisor
from dashboard.progress import INTERRUPTED, USAGE_ERROR, Stopped
from loops.core.text import one_line
from loops.models import Graph, Project, Task
from loops.store.submit import Refused
from loops.terminal import TerminalCommand

AskedT = TypeVar("AskedT")
TakenT = TypeVar("TakenT", Task, Graph)


def from_here(path: str) -> str:
    """The whole path of what a shell names from its own folder."""
    return str(Path(path).expanduser().absolute())


class SubmittingCommand(TerminalCommand, ABC, Generic[AskedT, TakenT]):
    """Reads, submits, and with `--wait` starts what is needed, follows and reports."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The options of every submission."""
        parser.add_argument("--project", default="default")
        parser.add_argument("--wait", action="store_true", help="start what is needed and follow")

    @abstractmethod
    def read(self, options: dict[str, Any]) -> AskedT:
        """What is asked for. Raises `CommandError`."""

    @abstractmethod
    def take(self, asked: AskedT, project: Project) -> TakenT:
        """Store it. Raises `Refused`."""

    @abstractmethod
    def follow(self, taken: TakenT, alive: Callable[[], bool]) -> TakenT:
        """Print what happens until it has ended or waits. Raises `Stopped`."""

    @abstractmethod
    def report(self, taken: TakenT) -> int:
        """Print what came of it and return the exit status."""

    def notes(self, taken: TakenT) -> Sequence[str]:  # noqa: ARG002 - for those that have some
        """What to know about it at once."""
        return ()

    def handle(self, *_args: Any, **options: Any) -> None:
        """Submit, and wait if asked to."""
        try:
            self._submit(options)
        except CannotStart as error:
            raise CommandError(str(error)) from error
        except OperationalError as error:
            message = f"the database cannot be written: {error}. Nothing was stored."
            raise CommandError(message) from error

    def _submit(self, options: dict[str, Any]) -> None:
        asked = self.read(options)
        if not Supervisor.running(settings.DATA_DIR):
            prepare_database()
        project, made = Project.objects.get_or_create(
            slug=options["project"], defaults={"name": options["project"].capitalize()}
        )
        try:
            taken = self.take(asked, project)
        except Refused as refused:
            if made:
                project.delete()
            for problem in refused.problems:
                where = one_line(problem.field or "the document")
                self.stderr.write(f"{where}: {one_line(problem.message)}")
            sys.exit(USAGE_ERROR)
        self.stdout.write(f"{taken.key} submitted: {one_line(taken.title)}")
        for note in self.notes(taken):
            self.stdout.write(f"Note: {one_line(note)}")
        if options["wait"]:
            sys.exit(self._wait(taken))
        if not something_works():
            self.stdout.write("It starts as soon as a worker is there: `make up` starts one.")

    def _wait(self, taken: TakenT) -> int:
        try:
            with local_stack(say=self.stdout.write) as alive:
                ended = self.follow(taken, alive)
        except KeyboardInterrupt:
            self.stderr.write(f"Not waiting any more. {taken.key} {goes_on()}.")
            return INTERRUPTED
        except (Stopped, CannotStart) as error:
            self.stderr.write(f"{error}\n{taken.key} is stored and {goes_on()}.")
            return 1
        return self.report(ended)
