"""The operator's own tools, as the workers load them: both pay at the bank."""

from __future__ import annotations

import json
import os
import urllib.request

from pydantic import BaseModel

from tests.chaos.bank import ADDRESS
from workers.tools.base import ToolContext

SECONDS = 3.0


class Payment(BaseModel):
    """What is paid for which task."""

    task: int
    amount: int


def pay(context: ToolContext, given: Payment) -> str:
    """Pay an amount."""
    request = urllib.request.Request(
        os.environ[ADDRESS],
        data=json.dumps(given.model_dump()).encode(),
        headers={"Idempotency-Key": context.idempotency_key},
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return str(answer.read().decode())


def pay_and_ask(context: ToolContext, given: Payment) -> str:
    """Pay an amount at a bank that can be asked later."""
    return pay(context, given)


def _paid(context: ToolContext, given: Payment) -> bool:
    address = f"{os.environ[ADDRESS]}/{context.idempotency_key}"
    with urllib.request.urlopen(address, timeout=SECONDS) as answer:
        return bool(json.load(answer)["paid"])


pay_and_ask.probe = _paid  # type: ignore[attr-defined] # how a tool of one's own names its probe
