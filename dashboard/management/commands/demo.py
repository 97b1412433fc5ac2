"""`manage.py demo`: start everything, run the main job, show what came of it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.utils import timezone

from dashboard.demo import submit_all
from dashboard.local.errors import CannotStart
from dashboard.local.first_login import login_link
from dashboard.local.readiness import registered_since
from dashboard.local.standard import standard_supervisor
from dashboard.local.supervisor import Supervisor
from dashboard.progress import follow, table
from dashboard.results import how_to_take
from loops.core.text import one_line
from loops.models import Run
from loops.terminal import TerminalCommand

EXPECTED = ("succeeded", "succeeded", "at_gate")


class Command(TerminalCommand):
    """Runs the demo tasks on a fresh or a used installation."""

    help = "Start everything on this machine, run three demo tasks and keep serving until Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The options."""
        parser.add_argument("--port", type=int, help="port of the page (LOOPWARDEN_PORT)")
        parser.add_argument(
            "--exit", action="store_true", help="end after the tasks, with status 0"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Start, run, show, serve."""
        ready = registered_since(timezone.now())
        try:
            with standard_supervisor(ready=ready, port=options["port"]) as supervisor:
                supervisor.wait_ready()
                self._run(supervisor)
                self.stdout.write(f"\nLoopwarden is at {supervisor.address}")
                self.stdout.write(f"Sign in, works once: {login_link(supervisor.address)}")
                if options["exit"]:
                    self.stdout.write("Stopping, as asked by --exit.")
                    return
                self.stdout.write("Ctrl-C stops everything.")
                self.stdout.flush()
                supervisor.serve_forever()
        except CannotStart as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self.stdout.write("Stopped.")

    def _run(self, supervisor: Supervisor) -> None:
        def alive() -> bool:
            supervisor.check()
            return True

        tasks = submit_all(settings.DATA_DIR / "demo")
        runs = follow([task.runs.get().pk for task in tasks], self.stdout.write, alive=alive)
        self.stdout.write("")
        for line in table(runs):
            self.stdout.write(line)
        for run in runs:
            self._explain(run)
        statuses = tuple(run.status for run in runs)
        if statuses != EXPECTED:
            raise CommandError(f"the demo should end as {EXPECTED}, it ended as {statuses}")

    def _explain(self, run: Run) -> None:
        lines = how_to_take(run)
        if lines:
            self.stdout.write(f"\n{run.task.key} {one_line(run.task.title)}")
        for line in lines:
            self.stdout.write(line)
