"""`manage.py agent`: agent profiles from the command line."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from decimal import Decimal, InvalidOperation
from typing import Any

from django.core.management.base import CommandError
from pydantic import ValidationError

from dashboard.documents import Unreadable, read_document
from loops.admission import at_once, rests
from loops.core.text import cleaned, one_line
from loops.models import AgentProfile
from loops.patterns.wrong_fields import wrong_fields
from loops.store.submit import NO_TEXT
from loops.terminal import TerminalCommand
from workers import agents
from workers.profiles import provider_of

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")
"""As much as its column holds; it stands in commands, pages and the names of slots."""
_SHOWN = 60
_MOST_RUNNING = 100_000
_DEAREST = 1_000_000
_RESTED: dict[str, Any] = {"strikes": 0, "resting_until": None, "last_overload": ""}
"""Who sets a profile has mended what was wrong with it."""


class Command(TerminalCommand):
    """Lists, sets and removes agent profiles."""

    help = (
        "Agent profiles. Example: manage.py agent set fixer command"
        ' --config \'{"argv": ["my-agent", "--print"]}\' --price 2 10'
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One verb each."""
        verbs = parser.add_subparsers(dest="verb", required=True)
        verbs.add_parser("list", help="the profiles there are")
        remove = verbs.add_parser("remove", help="take a profile away")
        remove.add_argument("name")
        change = verbs.add_parser("set", help="add a profile, or change one")
        change.add_argument("name", help="short, such as fixer or fast-reviewer")
        change.add_argument("provider", choices=agents.NAMES)
        change.add_argument("--config", default="{}", help="the provider's settings as JSON")
        change.add_argument(
            "--price",
            nargs=2,
            metavar=("IN", "OUT"),
            help="US dollars per million tokens; 0 is free",
        )
        change.add_argument("--max-running", type=int, default=16, help="calls at the same time")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Do what the verb says."""
        match options["verb"]:
            case "list":
                self._list()
            case "remove":
                self._remove(options["name"])
            case _:
                self._set(options)

    def _list(self) -> None:
        for profile in AgentProfile.objects.order_by("name"):
            line = [profile.name, profile.provider, _price(profile), *_state(profile)]
            self.stdout.write(one_line("  ".join(line)))

    def _remove(self, name: str) -> None:
        removed, _ = AgentProfile.objects.filter(name=name).delete()
        if not removed:
            raise CommandError(f"there is no agent profile {name!r}")
        self.stdout.write(f"{name} removed")

    def _set(self, options: dict[str, Any]) -> None:
        name = _name(options["name"])
        config = _config(options["provider"], options["config"])
        incoming, outgoing = _prices(options["price"])
        if not 1 <= options["max_running"] <= _MOST_RUNNING:
            raise CommandError(f"--max-running: must be from 1 to {_MOST_RUNNING}")
        AgentProfile.objects.update_or_create(
            name=name,
            defaults={
                "provider": options["provider"],
                "config": config,
                "input_usd_per_mtok": incoming,
                "output_usd_per_mtok": outgoing,
                "max_running": options["max_running"],
                **_RESTED,
            },
        )
        self.stdout.write(f"{name} is set")


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        message = (
            f"name: {text[:_SHOWN]!r} will not do; take up to 50 letters, digits, points,"
            " underscores and hyphens, with a letter or digit first"
        )
        raise CommandError(message)
    return text


def _state(profile: AgentProfile) -> list[str]:
    """Whether it rests, and what its provider said."""
    if rests(profile):
        return [f"rests until {profile.resting_until:%H:%M:%S} UTC: {profile.last_overload}"]
    if at_once(profile) < profile.max_running:
        return [f"one run tries for all: {profile.last_overload}"]
    return []


def _price(profile: AgentProfile) -> str:
    if profile.input_usd_per_mtok is not None:
        return f"${profile.input_usd_per_mtok:f} in, ${profile.output_usd_per_mtok:f} out"
    try:
        priced = provider_of(profile).priced
    except (agents.UnknownProvider, ValidationError):
        return "cannot be used"
    return "priced by its provider" if priced else "no price"


def _config(provider: str, text: str) -> dict[str, Any]:
    try:
        config = read_document(text, is_json=True)
    except Unreadable as error:
        raise CommandError(f"--config: is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise CommandError("--config: must be a JSON object")
    if bad := cleaned(config)[1]:
        raise CommandError("\n".join(f"--config {one}: {NO_TEXT}" for one in bad))
    try:
        agents.get(provider).open(config)
    except ValidationError as error:
        problems = (f"--config {wrong}" for wrong in wrong_fields(error))
        raise CommandError("\n".join(problems)) from error
    return config


def _prices(given: list[str] | None) -> tuple[Decimal | None, Decimal | None]:
    if given is None:
        return None, None
    try:
        incoming, outgoing = (Decimal(text) for text in given)
    except InvalidOperation as error:
        raise CommandError("--price: must be two numbers, such as 2 10") from error
    for price in (incoming, outgoing):
        if not price.is_finite() or not 0 <= price < _DEAREST or price != round(price, 6):
            message = f"--price: must be from 0 to below {_DEAREST}, with at most 6 decimals"
            raise CommandError(message)
    return incoming, outgoing
