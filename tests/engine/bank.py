"""A tool of an operator's own for engine tests: it pays by writing into a book."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
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
        worker = int(dies.read_text())
        dies.unlink()
        os.kill(worker, signal.SIGKILL)
    return "paid"


def pay_and_tell(context: ToolContext, given: Payment) -> str:
    """Pay an amount at a bank that can be asked later."""
    return pay(context, given)


def _paid(context: ToolContext, given: Payment) -> bool:
    return context.idempotency_key in Path(given.book).read_text()


pay_and_tell.probe = _paid  # type: ignore[attr-defined]


class Stall(BaseModel):
    """How a tool fails to end, and where it leaves word of itself."""

    folder: str
    how: str


def stall(context: ToolContext, given: Stall) -> str:
    """Do as asked, and write down the ids of every process that was started."""
    folder = Path(given.folder)
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (folder / "pids").write_text(f"{os.getpid()} {child.pid}")
    (folder / "begun").touch()
    if given.how == "heeds":
        context.cancelled.wait()
        return "I was told to end."
    if given.how == "hangs":
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
        time.sleep(600)
    if given.how == "dies":
        os.kill(os.getpid(), signal.SIGSEGV)
    if given.how == "leaves":
        threading.Thread(target=time.sleep, args=(600,)).start()
    return f"{given.how} for {context.idempotency_key} in {context.folder}"
