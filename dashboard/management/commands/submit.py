"""`manage.py submit PATTERN ...`: hand in a task, and with `--wait` see it through."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from dashboard.documents import read_document
from dashboard.management.submitting import SubmittingCommand, from_here
from dashboard.progress import EXIT_CODES, USAGE_ERROR, follow
from dashboard.results import how_to_take
from dashboard.specs import names
from loops.core.text import one_line
from loops.figures import effective_status
from loops.models import Project, Task
from loops.patterns import NAMES, UnknownPattern, get
from loops.store.submit import LIMIT_NAMES
from workers.intake import TaskRequest, accept, notes_of


class Command(SubmittingCommand[TaskRequest, Task]):
    """Submits one task of any pattern."""

    help = (
        "Submit a task. Exit status with --wait: 0 success, 1 failed, 2 not accepted, 3 a limit"
        " was reached, 4 a person must decide, 5 cancelled."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The options; `--check` and `--fix` are short for fields of the spec."""
        parser.epilog = f"Fields of the spec (`manage.py specs PATTERN` explains them): {names()}"
        parser.add_argument("pattern", help=f"one of {', '.join(NAMES)}")
        parser.add_argument("--title", default="", help="a few words; made up when left out")
        parser.add_argument("--aim", default="", help="what must be true at the end")
        parser.add_argument("--repo", help="any local git repository; a private clone is used")
        parser.add_argument(
            "--include-dirty", action="store_true", help="take uncommitted changes along"
        )
        parser.add_argument("--check", action="append", default=[], metavar="CMD")
        parser.add_argument("--fix", action="append", default=[], metavar="CMD")
        parser.add_argument("--spec", metavar="FILE", help="the spec as a JSON file, - for stdin")
        parser.add_argument(
            "--set", action="append", default=[], metavar="FIELD=TEXT", help="one field of the spec"
        )
        parser.add_argument("--agent", action="append", default=[], metavar="ROLE=PROFILE")
        parser.add_argument("--max-iterations", type=int)
        parser.add_argument(
            "--limit",
            action="append",
            default=[],
            metavar="NAME=NUMBER",
            help=f"one of {', '.join(LIMIT_NAMES)}; a dollar is 1000000 of cost_microusd",
        )
        parser.add_argument("--on-limit", default="", choices=["", "gate", "stop"])
        super().add_arguments(parser)

    def take(self, asked: TaskRequest, project: Project) -> Task:
        """Store the task with its first run."""
        roots = settings.LOOPWARDEN_SHELL_ROOTS
        return accept(asked, project=project, user=None, roots=roots)

    def notes(self, taken: Task) -> Sequence[str]:
        """What a person may not expect of the private clone, or of the agents."""
        return notes_of(taken)

    def follow(self, taken: Task, alive: Callable[[], bool]) -> Task:
        """A line per event of its run."""
        follow([taken.runs.get().pk], self.stdout.write, alive=alive)
        return taken

    def report(self, taken: Task) -> int:
        """Why it ended, and how to take the result."""
        run = taken.runs.get()
        self.stdout.write(f"{taken.key}: {one_line(run.sentence or run.status)}")
        for line in how_to_take(run):
            self.stdout.write(line)
        return EXIT_CODES[effective_status(run)[0]]

    def read(self, options: dict[str, Any]) -> TaskRequest:
        spec = self._spec(options)
        limits = {name: _number(text) for name, text in _pairs(options["limit"], "--limit")}
        iterations = options["max_iterations"]
        if iterations is None and "iterations" not in limits:
            iterations = _usual_iterations(options["pattern"])
        if iterations is not None:
            limits["iterations"] = iterations
        name = Path(options["repo"]).resolve().name if options["repo"] else ""
        return TaskRequest(
            pattern=options["pattern"],
            title=options["title"] or f"{options['pattern']} {name}".strip(),
            local_aim=options["aim"],
            spec=spec,
            limits=limits,
            agents=dict(_pairs(options["agent"], "--agent")),
            on_limit=options["on_limit"],
            repo=from_here(options["repo"]) if options["repo"] else None,
            include_dirty=options["include_dirty"],
        )

    def _spec(self, options: dict[str, Any]) -> dict[str, Any]:
        spec: dict[str, Any] = {}
        if options["spec"]:
            spec = _json_object(options["spec"])
        if options["check"]:
            spec["checks"] = options["check"]
        if options["fix"]:
            spec["fixes"] = options["fix"]
        return spec | dict(_pairs(options["set"], "--set"))


def _json_object(source: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
        spec = read_document(text, is_json=True)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"--spec: cannot read {source}: {error}", returncode=USAGE_ERROR
        ) from error
    if not isinstance(spec, dict):
        raise CommandError("--spec: must hold a JSON object", returncode=USAGE_ERROR)
    return spec


def _pairs(values: list[str], option: str) -> list[tuple[str, str]]:
    pairs = [tuple(value.split("=", 1)) for value in values]
    for value, pair in zip(values, pairs, strict=True):
        if len(pair) != 2:
            raise CommandError(f"{option}: {value!r} is not NAME=VALUE", returncode=USAGE_ERROR)
    return [(pair[0], pair[1]) for pair in pairs]


def _number(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _usual_iterations(pattern: str) -> int | None:
    try:
        return get(pattern).default_limits.iterations
    except UnknownPattern:
        return None
