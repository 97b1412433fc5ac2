"""`manage.py correct`: takes back a cost that was booked by a wrong price."""

from __future__ import annotations

import getpass
import re
from decimal import Decimal, InvalidOperation
from typing import Any

import redis
from django.core.management.base import CommandError, CommandParser

from loops.core.money import dollars
from loops.models import Run
from loops.store import ledger
from loops.store.corrections import CannotCorrect, correct_cost
from loops.terminal import TerminalCommand
from workers import budgets
from workers.agents.base import microusd


class Command(TerminalCommand):
    help = 'Correct what a run was charged. Example: manage.py correct T-4 -91.30 "wrong price"'

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("task", help="such as T-4; its newest run is corrected")
        parser.add_argument("usd", help="dollars to add, or with a minus to take off")
        parser.add_argument("reason", help="stands in the run's events")

    def handle(self, *_args: Any, task: str, usd: str, reason: str, **_options: Any) -> None:
        run = _newest_run(task)
        try:
            left = correct_cost(run.pk, _microusd(usd), reason=reason, actor=getpass.getuser())
        except CannotCorrect as error:
            raise CommandError(str(error)) from error
        try:
            for scope in ledger.scopes_of(run):
                budgets.forget(scope)
        except redis.RedisError as error:
            raise CommandError(
                f"corrected, but the live counters hold the old sum until Redis is back: {error}"
            ) from error
        self.stdout.write(f"{task} is charged ${dollars(left)} now")


def _newest_run(task: str) -> Run:
    match = re.fullmatch(r"[Tt]-(\d{1,9})", task)
    run = Run.objects.filter(task_id=int(match[1])).order_by("-number").first() if match else None
    if run is None:
        raise CommandError(f"there is no task {task}")
    return run


def _microusd(usd: str) -> int:
    try:
        amount = Decimal(usd)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or abs(amount) > 1_000_000:
        raise CommandError(f"{usd!r} is no amount of dollars")
    return microusd(amount)
