"""`manage.py submit-graph FILE`: hand in a graph, and with `--wait` see it through."""
# ruff: noqa: N999 - the command's name

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from dashboard.api.graph_bodies import read_graph
from dashboard.documents import read_document
from dashboard.graph_progress import (
    EXIT_CODES,
    WAITS_FOR_A_PERSON,
    follow_graph,
    results,
    table,
)
from dashboard.management.submitting import SubmittingCommand, from_here
from dashboard.progress import USAGE_ERROR
from loops.models import Graph, Project
from loops.store.submit import Problem
from workers.graph_intake import GraphRequest, NodeRequest, accept_graph, notes_of

Asked = tuple[GraphRequest, list[Problem]]


class Command(SubmittingCommand[Asked, Graph]):
    """Submits one graph."""

    help = (
        "Submit a graph from a JSON or YAML file, - for stdin. Exit status with --wait: 0 success,"
        " 1 rejected or vetoed, 2 not accepted, 4 escalated or a person must decide, 5 cancelled."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The options."""
        parser.add_argument("file", help="a .json or .yaml file; standard input is YAML")
        super().add_arguments(parser)

    def read(self, options: dict[str, Any]) -> Asked:
        """The graph of the document, and what in it could not be read."""
        request, unread = read_graph(_document(options["file"]))
        return replace(request, nodes=[_from_here(node) for node in request.nodes]), unread

    def take(self, asked: Asked, project: Project) -> Graph:
        """Store the graph; its first tasks start by themselves."""
        request, unread = asked
        roots = settings.LOOPWARDEN_SHELL_ROOTS
        return accept_graph(request, project=project, user=None, roots=roots, unread=unread)

    def notes(self, taken: Graph) -> Sequence[str]:
        """What to know of its nodes."""
        return notes_of(taken)

    def follow(self, taken: Graph, alive: Callable[[], bool]) -> Graph:
        """A line per event of the graph."""
        return follow_graph(taken.pk, self.stdout.write, alive=alive)

    def report(self, taken: Graph) -> int:
        """What became of every node, and how to take the results."""
        for line in [*table(taken), *results(taken)]:
            self.stdout.write(line)
        return EXIT_CODES.get(taken.outcome, WAITS_FOR_A_PERSON)


def _from_here(node: NodeRequest) -> NodeRequest:
    if node.task is None or not node.task.repo:
        return node
    return replace(node, task=replace(node.task, repo=from_here(node.task.repo)))


def _document(source: str) -> Any:
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
        return read_document(text, is_json=source.endswith(".json"))
    except (OSError, ValueError) as error:
        message = f"cannot read {source}: {error}"
        raise CommandError(message, returncode=USAGE_ERROR) from error
