"""`manage.py project`: what projects may spend in a day, and their share of the slots."""

from __future__ import annotations

import getpass
from argparse import ArgumentParser
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.management.base import CommandError

from loops.core.days import zone_of
from loops.core.errors import ContractError
from loops.core.limits import MOST_SPENT
from loops.core.money import dollars
from loops.models import Project, ProjectDay
from loops.store import days
from loops.terminal import TerminalCommand
from workers.agents.base import microusd

_NONE = "none"
MOST_WEIGHT = 1000


class Command(TerminalCommand):
    """Lists projects, sets their caps, time zone and weight, and grants more for today."""

    help = (
        "Projects and their daily caps. Example: manage.py project set default"
        " --daily-cost 20 --time-zone Europe/Berlin"
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One verb each."""
        verbs = parser.add_subparsers(dest="verb", required=True)
        verbs.add_parser("list", help="the projects and what they spent today")
        change = verbs.add_parser("set", help="change caps, time zone or weight, for today too")
        change.add_argument("slug", help="such as default")
        change.add_argument("--daily-cost", metavar="USD", help="dollars a day, or none")
        change.add_argument("--daily-tokens", metavar="N", help="tokens a day, or none")
        change.add_argument("--time-zone", metavar="NAME", help="whose midnight begins a day")
        share = f"share of the slots beside other projects, 1 to {MOST_WEIGHT}"
        change.add_argument("--weight", metavar="N", help=share)
        more = verbs.add_parser("grant", help="add to what is left of today")
        more.add_argument("slug")
        more.add_argument("--cost", metavar="USD", help="dollars")
        more.add_argument("--tokens", metavar="N")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Do what the verb says."""
        match options["verb"]:
            case "list":
                self._list()
            case "grant":
                self._grant(options)
            case _:
                self._set(options)

    def _list(self) -> None:
        today = {day.project_id: day for day in days.current()}
        for project in Project.objects.order_by("slug"):
            self._say(project, today.get(project.pk))

    def _set(self, options: dict[str, Any]) -> None:
        project = _project(options["slug"])
        facts: dict[str, Any] = {}
        if options["daily_cost"] is not None:
            facts["daily_cost_microusd"] = _cap("--daily-cost", options["daily_cost"], _money)
        if options["daily_tokens"] is not None:
            facts["daily_tokens"] = _cap("--daily-tokens", options["daily_tokens"], _whole)
        if options["time_zone"] is not None:
            facts["time_zone"] = _zone(options["time_zone"])
        if options["weight"] is not None:
            facts["weight"] = _weight(options["weight"])
        if not facts:
            raise CommandError(
                "say what to set: --daily-cost, --daily-tokens, --time-zone or --weight"
            )
        day = days.configure(project, **facts)
        self._say(project, day)

    def _grant(self, options: dict[str, Any]) -> None:
        project = _project(options["slug"])
        cost, tokens = options["cost"], options["tokens"]
        if cost is None and tokens is None:
            raise CommandError("say how much: --cost USD or --tokens N")
        day = days.today(project.pk)
        days.grant(
            day,
            tokens=0 if tokens is None else _whole("--tokens", tokens),
            microusd=0 if cost is None else _money("--cost", cost),
            user=None,
            actor=getpass.getuser(),
        )
        day.refresh_from_db()
        self._say(project, day)

    def _say(self, project: Project, day: ProjectDay | None) -> None:
        facts = (project.slug, project.time_zone, f"weight {project.weight}")
        self.stdout.write("  ".join((*facts, _spent(project, day))))


def _project(slug: str) -> Project:
    project = Project.objects.filter(slug=slug).first()
    if project is None:
        known = ", ".join(Project.objects.order_by("slug").values_list("slug", flat=True))
        raise CommandError(f"there is no project {slug!r}; there are: {known or 'none yet'}")
    return project


def _spent(project: Project, day: ProjectDay | None) -> str:
    cost, tokens = (day.used.cost_microusd, day.used.tokens) if day else (0, 0)
    caps = (day.limit_cost_microusd, day.limit_tokens) if day else _caps(project)
    line = f"today ${dollars(cost)} of {_of(caps[0], money=True)}"
    line += f", {tokens} of {_of(caps[1], money=False)} tokens"
    return f"{line}, used up" if day and day.used_up else line


def _caps(project: Project) -> tuple[int | None, int | None]:
    return project.daily_cost_microusd, project.daily_tokens


def _of(cap: int | None, *, money: bool) -> str:
    if cap is None:
        return "any"
    return f"${dollars(cap)}" if money else str(cap)


def _cap(option: str, text: str, read: Any) -> int | None:
    return None if text == _NONE else int(read(option, text))


def _money(option: str, text: str) -> int:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or not 0 < amount * 1_000_000 <= MOST_SPENT:
        raise CommandError(f"{option}: {text!r} is no positive amount of dollars")
    return microusd(amount)


def _whole(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text[:20]) <= MOST_SPENT:
        raise CommandError(f"{option}: {text!r} is no positive whole number")
    return int(text)


def _weight(text: str) -> int:
    weight = _whole("--weight", text)
    if weight > MOST_WEIGHT:
        raise CommandError(f"--weight: {text!r} is above {MOST_WEIGHT}")
    return weight


def _zone(name: str) -> str:
    try:
        return zone_of(name).key
    except ContractError as error:
        raise CommandError(f"--time-zone: {str(error).removeprefix('time_zone: ')}") from error
