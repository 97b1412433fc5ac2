"""What the commands that pause and resume have in common: what they name, and who asks."""

from __future__ import annotations

import getpass
from typing import Any

from django.core.management.base import CommandError, CommandParser

from loops.models import Project, Run
from loops.store.holds import Request, Target
from loops.terminal import TerminalCommand


class HoldingCommand(TerminalCommand):
    """Names one target and gives a reason."""

    knows_switch = False

    def add_arguments(self, parser: CommandParser) -> None:
        """One of the targets, why, and the id that makes a repeat harmless."""
        target = parser.add_mutually_exclusive_group(required=True)
        target.add_argument("--run", type=int, metavar="NUMBER", help="one run, by its number")
        target.add_argument("--task", metavar="T-12", help="the newest run of a task")
        target.add_argument("--project", metavar="NAME", help="one project, by its short name")
        target.add_argument("--all", action="store_true", help="everything")
        if self.knows_switch:
            target.add_argument("--switch", action="store_true", help="what `stop-all` has stopped")
        self.add_reason(parser)

    def add_reason(self, parser: CommandParser) -> None:
        """Why, and the request id."""
        parser.add_argument("--why", default="", help="stands on the pages and in the events")
        parser.add_argument("--request-id", help="the same id again changes nothing")

    def target(self, options: dict[str, Any]) -> Target:
        """The target, or an error that names what is missing."""
        if options.get("switch"):
            return Target(switch=True)
        if options["project"] is not None:
            project = Project.objects.filter(slug=options["project"]).first()
            if project is None:
                known = ", ".join(Project.objects.order_by("slug").values_list("slug", flat=True))
                name = options["project"]
                raise CommandError(f"--project: there is no {name}; there are: {known}")
            return Target(project=project)
        if options["run"] is None and options["task"] is None:
            return Target()
        runs = Run.objects.select_related("task").order_by("-number")
        number = (options["task"] or "").upper().removeprefix("T-")
        if options["run"] is not None:
            run = runs.filter(pk=options["run"]).first()
        else:
            run = runs.filter(task_id=int(number)).first() if number.isdigit() else None
        if run is None:
            name = "--run" if options["run"] is not None else "--task"
            raise CommandError(f"{name}: there is no run {options['run'] or options['task']}")
        return Target(run=run)

    def request(self, options: dict[str, Any]) -> Request:
        """Whoever is logged in to the shell asks."""
        own = {"request_id": f"shell:{options['request_id']}"} if options["request_id"] else {}
        return Request(actor=f"shell:{getpass.getuser()}", why=options["why"], **own)
