"""`manage.py submit-graph FILE`: hand in a graph, and with `--wait` see it through."""
# ruff: noqa: N999 - the command's name

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError

from dashboard.api.graph_bodies import read_graph
from dashboard.documents import read_document
from dashboard.graph_progress import (
    EXIT_CODES,
    WAITS_FOR_A_PERSON,
    follow_graph,
    results,
    table,
)
from dashboard.local.database import prepare_database
from dashboard.local.errors import CannotStart
from dashboard.local.stack import goes_on, local_stack, something_works
from dashboard.local.supervisor import Supervisor
from dashboard.progress import INTERRUPTED, USAGE_ERROR, Stopped
from loops.models import Graph, Project
from loops.store.submit import Refused
from workers.graph_intake import accept_graph


class Command(BaseCommand):
    """Submits one graph."""

    help = (
        "Submit a graph from a JSON or YAML file, - for stdin. Exit status with --wait: 0 success,"
        " 1 rejected or vetoed, 2 not accepted, 4 escalated or a person must decide, 5 cancelled."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The options."""
        parser.add_argument("file", help="a .json or .yaml file; standard input is YAML")
        parser.add_argument("--project", default="default")
        parser.add_argument("--wait", action="store_true", help="start what is needed and follow")

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
        request, unread = read_graph(_document(options["file"]))
        if not Supervisor.running(settings.DATA_DIR):
            prepare_database()
        project, _ = Project.objects.get_or_create(
            slug=options["project"], defaults={"name": options["project"].capitalize()}
        )
        roots = settings.LOOPWARDEN_SHELL_ROOTS
        try:
            graph = accept_graph(request, project=project, user=None, roots=roots, unread=unread)
        except Refused as refused:
            for problem in refused.problems:
                self.stderr.write(f"{problem.field or 'the document'}: {problem.message}")
            sys.exit(USAGE_ERROR)
        self.stdout.write(f"{graph.key} submitted: {graph.title}")
        if options["wait"]:
            sys.exit(self._wait(graph))
        if not something_works():
            self.stdout.write("It starts as soon as a worker is there: `make up` starts one.")

    def _wait(self, graph: Graph) -> int:
        try:
            with local_stack(say=self.stdout.write) as alive:
                graph = follow_graph(graph.pk, self.stdout.write, alive=alive)
        except KeyboardInterrupt:
            self.stderr.write(f"Not waiting any more. {graph.key} {goes_on()}.")
            return INTERRUPTED
        except (Stopped, CannotStart) as error:
            self.stderr.write(f"{error}\n{graph.key} is stored and {goes_on()}.")
            return 1
        for line in [*table(graph), *results(graph)]:
            self.stdout.write(line)
        return EXIT_CODES.get(graph.outcome, WAITS_FOR_A_PERSON)


def _document(source: str) -> Any:
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
        return read_document(text, is_json=source.endswith(".json"))
    except (OSError, ValueError) as error:
        message = f"cannot read {source}: {error}"
        raise CommandError(message, returncode=USAGE_ERROR) from error
