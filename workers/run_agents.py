"""Agents of one attempt: each call recorded, bounded and charged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from loops.core.canonical import digest as digest_of
from loops.core.effects import Message, Reply, ReplyStop, ToolCall, Usage
from loops.core.errors import AgentFault, AgentUnusable, Overrun
from loops.core.limits import Amount
from loops.core.text import clean
from loops.models import AgentProfile, Run, Step, StepKind, StepStatus
from loops.store import artifacts
from workers import breaker
from workers.agents.base import AgentRequest, Provider
from workers.agents.faults import Busy
from workers.box import Box
from workers.desk import Desk
from workers.effects import RunCommands
from workers.profiles import provider_of
from workers.recorder import Performed, Recorder, released_db
from workers.toolwork import SYSTEM, work_with_tools


class RunAgents:
    """`Agents` by the roles that the task names."""

    def __init__(
        self,
        run: Run,
        recorder: Recorder,
        box: Box,
        commands: RunCommands,
        *,
        most_repeats: int,
    ) -> None:
        """`most_repeats`: equal uses of a tool in a row that end the work; 0 for any number."""
        self._run = run
        self._most_repeats = most_repeats
        self._recorder = recorder
        self._box = box
        self._commands = commands
        names = run.task.agents
        profiles = {p.name: p for p in AgentProfile.objects.filter(name__in=names.values())}
        self._profiles = {role: profiles[name] for role, name in names.items() if name in profiles}
        self._turns = {role: self._turns_before(role) for role in self._profiles}

    def has(self, role: str) -> bool:
        """Whether the task names an agent for this role."""
        return role in self._profiles

    def ask(
        self,
        role: str,
        messages: Sequence[Message],
        *,
        system: str = "",
        schema: Mapping[str, Any] | None = None,
    ) -> Reply:
        """One model call."""
        request = self._request(role, tuple(messages), system=system)
        return self._call(StepKind.MODEL_CALL, replace(request, schema=schema))

    def work(self, role: str, prompt: str, *, checks: Mapping[str, str] | None = None) -> Reply:
        """Let an agent change the workspace: by itself in one call, or through tools of ours."""
        profile = self._profile(role)
        provider = provider_of(profile)
        if provider.works_in_workspace:
            message = Message(role="user", content=prompt)
            request = self._request(role, (message,))
            return self._call(StepKind.AGENT_WORK, replace(request, cwd=self._box.folder))
        if not provider.supports_tools:
            raise AgentUnusable(
                f"The agent {profile.name} cannot work in a repository: name one that can, or"
                " switch its tools on."
            )
        desk = Desk(
            role=role,
            checks=checks or {},
            recorder=self._recorder,
            box=self._box,
            commands=self._commands,
        )
        return work_with_tools(
            prompt,
            ask=partial(self._ask_at, desk),
            desk=desk,
            most_repeats=self._most_repeats,
        )

    def _ask_at(self, desk: Desk, messages: tuple[Message, ...], seen: int) -> Reply:
        request = replace(self._request(desk.role, messages, system=SYSTEM), tools=desk.specs)
        return self._call(StepKind.MODEL_CALL, request, seen=seen)

    def _request(
        self, role: str, messages: tuple[Message, ...], *, system: str = ""
    ) -> AgentRequest:
        self._profile(role)
        return AgentRequest(
            role=role,
            system=system,
            messages=messages,
            turn=self._turns[role],
            run_command=self._commands.run_for_agent,
        )

    def _call(self, kind: StepKind, request: AgentRequest, *, seen: int = 0) -> Reply:
        """One step. Its prompt is stored without the first `seen` messages: they are recorded."""
        profile = self._profile(request.role)
        provider = provider_of(profile)
        works, worst = kind is StepKind.AGENT_WORK, _worst(provider, request)
        replies: list[Reply] = []

        def act() -> Performed:
            lease = self._recorder.lease
            reply = provider.call(request, deadline=lease.deadline, cancelled=lease.lost)
            replies.append(reply)
            tree = self._box.note() if works else ""
            return _performed(reply, tree=tree, priced=provider.priced)

        whole = _transcript(request.system, request.messages)
        fresh = _transcript("", request.messages[seen:]) if seen else whole
        try:
            performed = self._recorder.step(
                kind=kind,
                role=request.role,
                name=profile.name,
                digest=digest_of(["agent", request.role, profile.name, whole]),
                worst=worst,
                act=act,
                prompt=artifacts.put_text(fresh),
            )
        except Busy as fault:
            raise breaker.struck(self._run, profile, fault) from fault
        except AgentFault as fault:
            spent = Usage(input_tokens=fault.tokens or 0, cost_microusd=fault.cost_microusd)
            self._refuse_overrun(profile, spent, worst, priced=provider.priced)
            raise
        if replies:
            breaker.succeeded(profile)
        self._turns[request.role] += 1
        if works:
            self._box.follow(performed.tree)
        # The full turn may hold thinking: it lives in memory only, so a replay goes without it.
        reply = replies[0] if replies else _replayed(performed)
        self._refuse_overrun(profile, reply.usage, worst, priced=provider.priced)
        return reply

    def _refuse_overrun(
        self, profile: AgentProfile, usage: Usage, worst: Amount, *, priced: bool
    ) -> None:
        """Raise `Overrun` on a capped axis: an agent whose bound does not hold gets no more."""
        caps, cost = self._run.limits, usage.cost_microusd or 0
        if priced and caps.cost_microusd is not None and cost > worst.cost_microusd:
            raise Overrun("cost", agent=profile.name, bound=worst.cost_microusd, used=cost)
        if caps.tokens is not None and usage.tokens > worst.tokens:
            raise Overrun("tokens", agent=profile.name, bound=worst.tokens, used=usage.tokens)

    def _profile(self, role: str) -> AgentProfile:
        try:
            return self._profiles[role]
        except KeyError:
            raise AgentFault(f"the task names no agent for the role {role!r}") from None

    def _turns_before(self, role: str) -> int:
        """Calls of earlier attempts: the same count on every machine and after every crash."""
        return Step.objects.filter(
            run=self._run,
            attempt_no__lt=self._run.attempt_no,
            role=role,
            kind__in=[StepKind.MODEL_CALL, StepKind.AGENT_WORK],
            status__in=[StepStatus.DONE, StepStatus.FAILED],
        ).count()

    def unused(self) -> list[str]:
        """What the agents' scripts hold that the run did not use."""
        profiles = {profile.name: profile for profile in self._profiles.values()}
        return [
            line
            for profile in profiles.values()
            for line in provider_of(profile).unused(self._turns)
        ]


def _worst(provider: Provider, request: AgentRequest) -> Amount:
    with released_db() if provider.asks_to_reserve else nullcontext():
        return provider.reserve(request)


def _performed(reply: Reply, *, tree: str, priced: bool) -> Performed:
    usage, cost = reply.usage, reply.usage.cost_microusd
    known = Amount(model_calls=1, tokens=usage.tokens, cost_microusd=cost or 0)
    calls = [[call.id, call.name, dict(call.arguments)] for call in reply.tool_calls]
    return Performed(
        result={
            "stop": reply.stop.value,
            "note": reply.note,
            "model": reply.model,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_read_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "cost_microusd": cost,
            "price": dict(reply.price) if reply.price else None,
            "tool_calls": artifacts.put(json.dumps(calls).encode(), "application/json")
            if calls
            else "",
        },
        output=artifacts.put_text(reply.text),
        tree=tree,
        # Without a price nothing was reserved in money, and the tokens are known all the same.
        usage=None if cost is None and priced else known,
    )


def _replayed(performed: Performed) -> Reply:
    result, text = performed.result, artifacts.get_text(performed.output)
    stored = json.loads(artifacts.get(result["tool_calls"])) if result["tool_calls"] else []
    calls = tuple(ToolCall(id=id_, name=name, arguments=given) for id_, name, given in stored)
    turn: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    turn += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in calls
    ]
    return Reply(
        text=text,
        stop=ReplyStop(result["stop"]),
        turn=turn if calls else None,
        tool_calls=calls,
        usage=Usage(
            input_tokens=result["input_tokens"],
            output_tokens=result["output_tokens"],
            cost_microusd=result["cost_microusd"],
            cache_read_tokens=result["cache_read_tokens"],
            cache_write_tokens=result["cache_write_tokens"],
        ),
        model=result["model"],
        note=result["note"],
        price=result["price"],
    )


def _transcript(system: str, messages: Sequence[Message]) -> str:
    parts = [f"[system]\n{system}"] if system else []
    parts += [f"[{message.role}]\n{_words(message.content)}" for message in messages]
    return "\n\n".join(parts)


def _words(content: Any) -> str:
    """A turn as text; of a provider's blocks what was said and done, never thinking."""
    if isinstance(content, str):
        return content
    return "\n".join(line for block in content if (line := _line(block)))


def _line(block: Mapping[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return str(block["text"])
        case "tool_use":
            arguments = json.dumps(block["input"], sort_keys=True, ensure_ascii=False)
            return clean(f"[{block['name']} {arguments}]")
        case "tool_result":
            return f"[result]\n{block['content']}"
    return ""
