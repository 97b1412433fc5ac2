"""The doors of one attempt: agents and commands, each call recorded, bounded and charged."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings

from loops.core.canonical import digest as digest_of
from loops.core.effects import CommandResult, Message, Reply, ReplyStop, Usage
from loops.core.errors import AgentFault, UndoFailed, WorkspaceFault
from loops.core.limits import Amount
from loops.models import AgentProfile, Attempt, Run, Step, StepKind, StepStatus
from loops.store import artifacts
from workers.agents.base import AgentRequest
from workers.box import Box
from workers.commands import run_command
from workers.profiles import provider_of
from workers.recorder import Effect, Performed, Recorder
from workers.sandbox import Sandbox


class RunCommands:
    """`Commands` in the run's workspace. Every command counts as one tool call."""

    def __init__(self, recorder: Recorder, box: Box, sandbox: Sandbox) -> None:
        self._recorder = recorder
        self._box = box
        self._sandbox = sandbox

    def check(self, name: str, command: str) -> CommandResult:
        """Run a check."""
        return self._step(StepKind.CHECK, name, command)

    def fix(self, name: str, command: str) -> CommandResult:
        """Run a command that is to change the workspace."""
        return self._step(StepKind.COMMAND, name, command)

    def check_all(self, checks: Sequence[tuple[str, str]]) -> list[CommandResult]:
        """Run checks side by side; what they write is noted when the last has ended."""
        sandbox = self._box.confine(self._sandbox)
        timeout = self._recorder.lease.seconds_left
        effects = {
            _command_effect(StepKind.CHECK, name, command): partial(
                self._run, command, timeout=timeout, sandbox=sandbox
            )
            for name, command in checks
        }
        performed = self._recorder.together(effects, self._performed)
        for one in performed:
            self._box.follow(one.tree)
        return [_result_of(one) for one in performed]

    def _step(self, kind: StepKind, name: str, command: str) -> CommandResult:
        def act() -> Performed:
            timeout = self._recorder.lease.seconds_left
            return self._performed(self._run(command, timeout=timeout), True)

        performed = self._recorder.step(_command_effect(kind, name, command), act)
        self._box.follow(performed.tree)
        return _result_of(performed)

    def _performed(self, result: CommandResult, quiet: bool) -> Performed:
        """`quiet`: no other command is still writing, so the files can be noted."""
        return Performed(
            result={
                "exit_code": result.exit_code,
                "ms": round(result.seconds * 1000),
                "timed_out": result.timed_out,
                "output_cut": result.output_cut,
                "warnings": list(result.warnings),
            },
            output=artifacts.put_text(result.output),
            tree=self._box.note() if quiet else "",
            usage=Amount(tool_calls=1),
        )

    def run_for_agent(
        self, argv: Sequence[str], *, cwd: Path | None, timeout: float, stdin: str
    ) -> CommandResult:
        """Run the command line of an agent, in the workspace or, to only answer, beside it."""
        content = stdin.encode("utf-8", "replace")
        if cwd is not None:
            return self._run(argv, timeout=timeout, stdin=content)
        with tempfile.TemporaryDirectory(prefix="loopwarden-agent-") as empty:
            folder = Path(empty)
            sandbox = self._sandbox.confine(folder, hidden=[settings.DATA_DIR])
            return self._run(argv, timeout=timeout, stdin=content, folder=folder, sandbox=sandbox)

    def _run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float,
        stdin: bytes = b"",
        folder: Path | None = None,
        sandbox: Sandbox | None = None,
    ) -> CommandResult:
        return run_command(
            command,
            cwd=folder or self._box.folder,
            timeout=max(timeout, 0.1),
            ceiling=settings.LOOPWARDEN_COMMAND_SECONDS,
            stdin=stdin,
            sandbox=sandbox or self._box.confine(self._sandbox),
            cancelled=self._recorder.lease.lost,
        )


def _command_effect(kind: StepKind, name: str, command: str) -> Effect:
    return Effect(
        kind=kind,
        role=name,
        name=command,
        digest=digest_of(["command", name, command]),
        worst=Amount(tool_calls=1),
    )


def _result_of(performed: Performed) -> CommandResult:
    return CommandResult(
        exit_code=performed.result["exit_code"],
        output=artifacts.get_text(performed.output),
        seconds=performed.result["ms"] / 1000,
        timed_out=performed.result["timed_out"],
        output_cut=performed.result["output_cut"],
        warnings=tuple(performed.result["warnings"]),
        artifact=performed.output,
    )


class RunWorkspace:
    """`Workspace` of the run: looking is free, an undo is a recorded step."""

    def __init__(self, recorder: Recorder, box: Box) -> None:
        self._recorder = recorder
        self._box = box

    def snapshot(self) -> str:
        """The id of the files as the last step left them."""
        return self._box.snapshot()

    def change(self, characters: int) -> str:
        """The change since the base commit, for a reviewer."""
        return self._box.packet(characters)

    def undo(self, before: str, after: str) -> None:
        """Take back what changed between two snapshots of this attempt."""
        self._step(before, after, partial(self._box.undo, before, after))

    def undo_attempt(self, attempt: Attempt) -> None:
        """Take back what an earlier attempt did, from its stored snapshots (S4-14).

        If that one began with an undo itself, its own work began after it.
        """
        first = attempt.run.steps.filter(attempt_no=attempt.no, seq=1, kind=StepKind.UNDO).first()
        before, after = first.tree_after if first else attempt.tree_before, attempt.tree_after
        self._step(before, after, partial(self._box.undo_stored, before, after))
        self._box.begin()

    def _step(self, before: str, after: str, undo: Callable[[], None]) -> None:
        def act() -> Performed:
            undo()
            return Performed(result={}, tree=self._box.tree, usage=Amount())

        effect = Effect(
            kind=StepKind.UNDO,
            role="undo",
            name="",
            digest=digest_of(["undo", before, after]),
            worst=Amount(),
        )
        try:
            performed = self._recorder.step(effect, act)
        except WorkspaceFault as fault:
            raise UndoFailed(str(fault)) from fault
        self._box.follow(performed.tree)


class RunAgents:
    """`Agents` by the roles that the task names."""

    def __init__(self, run: Run, recorder: Recorder, box: Box, commands: RunCommands) -> None:
        self._run = run
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

    def ask(self, role: str, messages: Sequence[Message], *, system: str = "") -> Reply:
        """One model call."""
        return self._call(StepKind.MODEL_CALL, role, system=system, messages=tuple(messages))

    def work(self, role: str, prompt: str) -> Reply:
        """One call of an agent that may change the workspace."""
        return self._call(
            StepKind.AGENT_WORK, role, messages=(Message(role="user", content=prompt),)
        )

    def _call(
        self, kind: StepKind, role: str, *, messages: tuple[Message, ...], system: str = ""
    ) -> Reply:
        profile = self._profile(role)
        provider = provider_of(profile)
        works = kind is StepKind.AGENT_WORK
        request = AgentRequest(
            role=role,
            system=system,
            messages=messages,
            cwd=self._box.folder if works else None,
            turn=self._turns[role],
            run_command=self._commands.run_for_agent,
        )
        replies: list[Reply] = []

        def act() -> Performed:
            lease = self._recorder.lease
            reply = provider.call(request, deadline=lease.deadline, cancelled=lease.lost)
            replies.append(reply)
            return self._performed(reply, tree=self._box.note() if works else "")

        prompt = _transcript(system, messages)
        effect = Effect(
            kind=kind,
            role=role,
            name=profile.name,
            digest=digest_of(["agent", role, profile.name, prompt]),
            worst=provider.reserve(request),
            prompt=artifacts.put_text(prompt),
        )
        performed = self._recorder.step(effect, act)
        self._turns[role] += 1
        if works:
            self._box.follow(performed.tree)
        # The full turn may hold thinking: it lives in memory only, so a replay has the text alone.
        return replies[0] if replies else _replayed(performed)

    @staticmethod
    def _performed(reply: Reply, *, tree: str) -> Performed:
        cost = reply.usage.cost_microusd
        known = Amount(model_calls=1, tokens=reply.usage.tokens, cost_microusd=cost or 0)
        return Performed(
            result={
                "stop": reply.stop.value,
                "note": reply.note,
                "model": reply.model,
                "input_tokens": reply.usage.input_tokens,
                "output_tokens": reply.usage.output_tokens,
                "cost_microusd": cost,
            },
            output=artifacts.put_text(reply.text),
            tree=tree,
            usage=None if cost is None else known,
        )

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


def _replayed(performed: Performed) -> Reply:
    result = performed.result
    return Reply(
        text=artifacts.get_text(performed.output),
        stop=ReplyStop(result["stop"]),
        usage=Usage(
            input_tokens=result["input_tokens"],
            output_tokens=result["output_tokens"],
            cost_microusd=result["cost_microusd"],
        ),
        model=result["model"],
        note=result["note"],
    )


def _transcript(system: str, messages: Sequence[Message]) -> str:
    parts = [f"[system]\n{system}"] if system else []
    parts += [f"[{message.role}]\n{_words(message.content)}" for message in messages]
    return "\n\n".join(parts)


def _words(content: Any) -> str:
    """Text of a turn; of a provider's blocks only the text ones, never thinking."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else content.get("content", [])
    return "\n".join(str(block["text"]) for block in blocks if block.get("type") == "text")
