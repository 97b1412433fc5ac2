"""`manage.py user`: adds people and makes login links."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import CommandError, CommandParser

from dashboard.accounts import make_login_link
from loops.terminal import TerminalCommand


class Command(TerminalCommand):
    help = "Add a user, or make a one-time login link for one."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add = verbs.add_parser("add", help="add a user without a password")
        add.add_argument("name")
        add.add_argument("--link", action="store_true", help="print a one-time login link")
        link = verbs.add_parser("link", help="print a one-time login link")
        link.add_argument("name")

    def handle(self, *_args: Any, verb: str, name: str, **options: Any) -> None:
        users = get_user_model().objects
        user = users.filter(username=name).first()
        if verb == "add":
            if user is not None:
                raise CommandError(f"there is a user {name} already")
            user = users.create_user(name)
            self.stdout.write(f"Added {name}.")
            if not options["link"]:
                return
        if user is None:
            raise CommandError(f"there is no user {name}; add one: manage.py user add {name}")
        self.stdout.write(make_login_link(user, settings.ORIGINS[0]))
        self.stdout.write("It works once, within 15 minutes.")
