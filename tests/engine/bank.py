"""A tool of an operator's own for engine tests: it pays by writing into a book."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from pydantic import BaseModel

from workers.filetools import ToolError
from workers.tools.base import ToolContext


class Payment(BaseModel):
    """What is paid, and into which book it is written."""

    book: str
    amount: int


def pay(context: ToolContext, given: Payment) -> str:
    """Pay an amount."""
    if given.amount < 0:
        raise ToolError("the bank refuses it")
    with Path(given.book).open("a") as book:
        book.write(f"{context.idempotency_key} {given.amount}\n")
    if given.amount == 13:
        raise TimeoutError("no answer from the bank")
    dies = Path(f"{given.book}.dies")
    if dies.exists():
        dies.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


def pay_and_tell(context: ToolContext, given: Payment) -> str:
    """Pay an amount at a bank that can be asked later."""
    return pay(context, given)


def _paid(context: ToolContext, given: Payment) -> bool:
    return context.idempotency_key in Path(given.book).read_text()


pay_and_tell.probe = _paid  # type: ignore[attr-defined]
