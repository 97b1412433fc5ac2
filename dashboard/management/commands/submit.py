"""`manage.py submit PATTERN ...`: hand in a task, and with `--wait` see it through."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError

from dashboard.local.database import prepare_database
from dashboard.local.errors import CannotStart
from dashboard.local.stack import goes_on, local_stack, something_works
from dashboard.local.supervisor import Supervisor
from dashboard.progress import EXIT_CODES, INTERRUPTED, USAGE_ERROR, Stopped, follow
from dashboard.results import how_to_take
from loops.figures import effective_status
from loops.models import Project, Run
from loops.patterns import UnknownPattern, get
from loops.store.submit import Refused
from workers.intake import TaskRequest, accept


class Command(BaseCommand):
    """Submits one task of any pattern."""

    help = (
        "Submit a task. Exit status with --wait: 0 success, 1 failed, 2 not accepted, 3 a limit"
        " was reached, 4 a person must decide, 5 cancelled."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The options; `--check` and `--fix` are short for fields of the spec."""
        parser.add_argument("pattern", help="such as check_fix or coder_reviewer")
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
        parser.add_argument("--limit", action="append", default=[], metavar="NAME=NUMBER")
        parser.add_argument("--on-limit", default="", choices=["", "gate", "stop"])
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
        request = self._request(options)
        if not Supervisor.running(settings.DATA_DIR):
            prepare_database()
        project, _ = Project.objects.get_or_create(
            slug=options["project"], defaults={"name": options["project"].capitalize()}
        )
        try:
            roots = settings.LOOPWARDEN_SHELL_ROOTS
            task = accept(request, project=project, user=None, roots=roots)
        except Refused as refused:
            for problem in refused.problems:
                self.stderr.write(f"{problem.field}: {problem.message}")
            sys.exit(USAGE_ERROR)
        run = task.runs.get()
        self.stdout.write(f"{task.key} submitted: {task.title}")
        for note in (task.source or {}).get("notes", []):
            self.stdout.write(f"Note: {note}")
        if options["wait"]:
            sys.exit(self._wait(run))
        if not something_works():
            self.stdout.write("It starts as soon as a worker is there: `make up` starts one.")

    def _wait(self, run: Run) -> int:
        try:
            with local_stack(say=self.stdout.write) as alive:
                (run,) = follow([run.pk], self.stdout.write, alive=alive)
        except KeyboardInterrupt:
            self.stderr.write(f"Not waiting any more. {run.task.key} {goes_on()}.")
            return INTERRUPTED
        except (Stopped, CannotStart) as error:
            self.stderr.write(f"{error}\n{run.task.key} is stored and {goes_on()}.")
            return 1
        self.stdout.write(f"{run.task.key}: {run.sentence or run.status}")
        for line in how_to_take(run):
            self.stdout.write(line)
        return EXIT_CODES[effective_status(run)[0]]

    def _request(self, options: dict[str, Any]) -> TaskRequest:
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
            repo=options["repo"],
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
        spec = json.loads(text)
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
