"""`manage.py up`: everything on this machine, until Ctrl-C."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from dashboard.local.errors import CannotStart
from dashboard.local.first_login import login_link
from dashboard.local.readiness import registered_since
from dashboard.local.standard import standard_supervisor
from dashboard.local.supervisor import Supervisor
from loops.terminal import TerminalCommand


class Command(TerminalCommand):
    # The tender checks the system, in parallel with the other starts.
    requires_system_checks: tuple[str, ...] = ()
    help = "Start Valkey, the web server, a worker and the tender; stop all of them on Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, help="port of the page (LOOPWARDEN_PORT)")
        parser.add_argument(
            "--exit-when", choices=["ready"], help="stop by itself: once the page answers"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        ready = registered_since(timezone.now())
        try:
            with standard_supervisor(ready=ready, port=options["port"]) as supervisor:
                supervisor.wait_ready()
                self._greet(supervisor)
                if options["exit_when"] is None:
                    supervisor.serve_forever()
                self.stdout.write("Stopping.")
        except CannotStart as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self.stdout.write("Stopped.")

    def _greet(self, supervisor: Supervisor) -> None:
        self.stdout.write(f"Loopwarden is at {supervisor.address}")
        self.stdout.write(f"Sign in, works once: {login_link(supervisor.address)}")
        self.stdout.write(f"Logs: {supervisor.data_dir / 'logs'}    Ctrl-C stops everything.")
        self.stdout.flush()
