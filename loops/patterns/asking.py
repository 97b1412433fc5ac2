"""One question to an agent whose answer has a format, with one repair turn (S0-9, S0-10, S0-17)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from loops.core.effects import Agents, Effects, Message, Reply
from loops.core.errors import FormatFault, Truncated
from loops.core.lifecycle import StopReason
from loops.patterns.base import CannotGoOn

T = TypeVar("T")


class Refused(CannotGoOn):
    """The agent declined to answer. The message is the sentence for people."""

    cause = StopReason.REFUSAL


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
    named = _named(agents, roles)
    for role in named[:-1]:
        try:
            return ask(agents, role, messages, system=system, read=read, schema=schema)
        except Refused:
            continue
    return ask(agents, named[-1], messages, system=system, read=read, schema=schema)


def work_in_turn(
    effects: Effects, roles: Sequence[str], prompt: str, *, checks: Mapping[str, str]
) -> Reply:
    """The same for an agent that changes files. Raises `Refused` or `Truncated`.

    Each starts from the files before, not from what was half done.
    """
    workspace, named = effects.workspace, _named(effects.agents, roles)
    before = workspace.snapshot()
    for role in named[:-1]:
        try:
            return _work(effects.agents, role, prompt, checks)
        except Refused:
            now = workspace.snapshot()
            if now != before:
                workspace.undo(before, now)
    return _work(effects.agents, named[-1], prompt, checks)


def _named(agents: Agents, roles: Sequence[str]) -> list[str]:
    first, *others = roles
    return [first, *(role for role in others if agents.has(role))]


def _work(agents: Agents, role: str, prompt: str, checks: Mapping[str, str]) -> Reply:
    reply = agents.work(role, prompt, checks=checks)
    refuse_refusal(role, reply)
    if reply.truncated:
        raise Truncated
    return reply


def fallback_of(role: str) -> str:
    """The role that is asked in place of this one after a refusal, if the task names it."""
    return f"fallback_{role}"


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
