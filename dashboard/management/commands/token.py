"""`manage.py token`: makes, lists and revokes API tokens."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError, CommandParser

from dashboard import tokens
from dashboard.projects import default_project
from loops.core.text import one_line
from loops.models import ApiToken, Project
from loops.terminal import TerminalCommand


class Command(TerminalCommand):
    help = "Make, list and revoke API tokens."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        create = verbs.add_parser("create", help="make a token and print it, this once")
        create.add_argument("name", help="what it is for")
        create.add_argument("--user", required=True, help="who it acts as")
        create.add_argument("--project", help="short name of its project")
        create.add_argument("--days", type=int, help="how long it works; without it, for ever")
        verbs.add_parser("list", help="list all tokens")
        revoke = verbs.add_parser("revoke", help="make a token useless")
        revoke.add_argument("prefix", help="the eight characters after lw_")

    def handle(self, *_args: Any, verb: str, **options: Any) -> None:
        {"create": self._create, "list": self._list, "revoke": self._revoke}[verb](options)

    def _create(self, options: dict[str, Any]) -> None:
        user = get_user_model().objects.filter(username=options["user"]).first()
        if user is None:
            raise CommandError(f"there is no user {options['user']}")
        if options["days"] is not None and options["days"] < 1:
            raise CommandError("--days must be at least 1")
        slug = options["project"]
        project = Project.objects.filter(slug=slug).first() if slug else default_project()
        if project is None:
            raise CommandError(f"there is no project {slug}")
        _, text = tokens.create(options["name"], user=user, project=project, days=options["days"])
        self.stdout.write(text)
        self.stderr.write("Keep it: it is not shown again.")

    def _list(self, _options: dict[str, Any]) -> None:
        for token in ApiToken.objects.select_related("user", "project").order_by("pk"):
            state = "revoked" if token.revoked_at else "active"
            until = f" until {token.expires_at:%Y-%m-%d}" if token.expires_at else ""
            used = f"{token.last_used_at:%Y-%m-%d %H:%M}" if token.last_used_at else "never"
            self.stdout.write(
                f"lw_{token.prefix}_...  {one_line(token.name)}  user {token.user.get_username()}"
                f"  project {token.project.slug}  {state}{until}  last used {used}"
            )

    def _revoke(self, options: dict[str, Any]) -> None:
        if not tokens.revoke(options["prefix"].removeprefix("lw_")):
            raise CommandError(f"there is no active token {options['prefix']}")
        self.stdout.write("Revoked.")
