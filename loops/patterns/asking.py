"""One question to an agent whose answer has a format, with one repair turn (S0-9, S0-10, S0-17)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from loops.core.effects import Agents, Message, Reply
from loops.core.errors import FormatFault, LoopwardenError

T = TypeVar("T")


class Refused(LoopwardenError):
    """The agent declined to answer. The message is the sentence for people."""


def ask(
    agents: Agents,
    role: str,
    messages: Sequence[Message],
    *,
    system: str,
    read: Callable[[str], T],
    schema: Mapping[str, Any] | None = None,
) -> T:
    """Ask, and read the answer with `read`.

    A `FormatFault` of `read` is sent back to the same agent once; a second one is raised. Raises
    `Refused` before anything else is looked at, then `Truncated` or `EmptyAnswer`, which are never
    repaired (S0-15, S0-16).
    """
    reply = agents.ask(role, messages, system=system, schema=schema)
    answer = answer_of(role, reply)
    try:
        return read(answer)
    except FormatFault as fault:
        repair = _repair(messages, reply, fault)
    return read(answer_of(role, agents.ask(role, repair, system=system, schema=schema)))


def ask_in_turn(
    agents: Agents,
    roles: Sequence[str],
    messages: Sequence[Message],
    *,
    system: str,
    read: Callable[[str], T],
    schema: Mapping[str, Any] | None = None,
) -> T:
    """`ask` the first role and, after a refusal, the next one that the task names (S0-G6).

    Each starts anew from the messages: what another model said is not handed on.
    """
    first, *others = roles
    named = [first, *(role for role in others if agents.has(role))]
    for role in named[:-1]:
        try:
            return ask(agents, role, messages, system=system, read=read, schema=schema)
        except Refused:
            continue
    return ask(agents, named[-1], messages, system=system, read=read, schema=schema)


def answer_of(role: str, reply: Reply) -> str:
    """The text of the reply. Raises `Refused`, `Truncated` or `EmptyAnswer`, in this order."""
    refuse_refusal(role, reply)
    return reply.answer()


def refuse_refusal(role: str, reply: Reply) -> None:
    """Raise `Refused` if the agent declined."""
    if reply.refused:
        raise Refused(f"The {role} declined to answer{f': {reply.note}' if reply.note else ''}.")


def _repair(messages: Sequence[Message], reply: Reply, fault: FormatFault) -> list[Message]:
    turn = reply.text if reply.turn is None else reply.turn
    return [
        *messages,
        Message(role="assistant", content=turn),
        Message(role="user", content=f"Your answer could not be read. {fault}"),
    ]
