"""The authorization layer between a plan and its tools: each use is a recorded step (S2-24)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from django.conf import settings
from pydantic import BaseModel, ValidationError

from loops.core.canonical import digest as digest_of
from loops.core.limits import Amount
from loops.core.plan import Risk
from loops.core.plan_states import ApprovalRequired
from loops.core.tooling import (
    ToolFault,
    ToolGrant,
    ToolInfo,
    ToolOutcome,
    ToolStatus,
    ToolUse,
    action_digest,
)
from loops.crashpoints import reach
from loops.models import Run, Step, StepKind, StepStatus
from loops.patterns.watching import says_not_ready
from loops.store import artifacts, ledger
from workers.box import Box
from workers.effects import RunCommands
from workers.recorder import Effect, Performed, Recorder
from workers.tools import registry
from workers.tools.apart import Use, run_apart
from workers.tools.base import Tool, ToolContext
from workers.tools.bounded import Said, bounded, seconds_for
from workers.tools.files import RUN_CHECK

_ONE_CALL = Amount(tool_calls=1)


class RunTools:
    """`Tools` of one attempt."""

    def __init__(
        self, run: Run, grant: ToolGrant, recorder: Recorder, box: Box, commands: RunCommands
    ) -> None:
        self._run_id = run.pk
        self._grant = grant
        self._recorder = recorder
        self._box = box
        self._commands = commands
        self._registry = registry() if grant.names else {}

    def authorized(self) -> Mapping[str, ToolInfo]:
        """The tools of the registry that the task names."""
        return {
            name: self._registry[name].info for name in self._grant.names if name in self._registry
        }

    def available(self) -> frozenset[str]:
        """Those that have here what they need."""
        there = {
            "": True,
            "workspace": self._box.has_repository,
            "checks": bool(self._grant.checks) and self._box.has_repository,
            "hosts": bool(settings.LOOPWARDEN_HTTP_HOSTS),
        }
        return frozenset(name for name, tool in self._registry.items() if there[tool.needs])

    def check(self, tool: str, parameters: Mapping[str, Any]) -> None:
        """Raise `ToolFault` unless the parameters fit."""
        _arguments(self._tool(tool), parameters)
        if tool == RUN_CHECK and parameters["name"] not in self._grant.checks:
            known = ", ".join(self._grant.checks)
            raise ToolFault("bad_parameters", f"There is no such check; there are: {known}.")

    def use(self, use: ToolUse, *, approved: str = "") -> ToolOutcome:
        """Use a tool at most once for its key, whichever worker and attempt asks."""
        tool = self._tool(use.tool)
        action = action_digest(use.tool, use.parameters)
        if tool.risk is Risk.HIGH_IMPACT and approved != action:
            raise ApprovalRequired
        if approved:
            reach("approved")
        if tool.name == RUN_CHECK:
            return self._check(use)
        if tool.leaves_traces and (earlier := self._earlier(use)) is not None:
            self._recorder.skip()
            return earlier
        effect = self._effect(use)
        performed = self._recorder.step(
            kind=effect.kind,
            role=effect.role,
            name=effect.name,
            digest=effect.digest,
            worst=effect.worst,
            act=lambda: self._noted(tool, self._act(tool, use)()),
        )
        self._box.follow(performed.tree)
        return self._outcome(use, performed.result, performed.output)

    def use_together(self, uses: Sequence[ToolUse]) -> list[ToolOutcome]:
        """Use tools that only read side by side."""
        tools = [self._tool(use.tool) for use in uses]
        if any(tool.risk is not Risk.READ for tool in tools):
            raise ApprovalRequired
        acts = {
            self._effect(use): self._act(tool, use) for use, tool in zip(uses, tools, strict=True)
        }
        performed = self._recorder.together(acts, lambda said, _last: self._noted(None, said))
        return [
            self._outcome(use, one.result, one.output)
            for use, one in zip(uses, performed, strict=True)
        ]

    def probe(self, use: ToolUse) -> bool | None:
        """Ask the tool itself, as a step of its own."""
        tool = self._tool(use.tool)
        if tool.probe is None:
            return None
        asked = ToolUse(key=f"probe-{use.key}", tool=use.tool, parameters=use.parameters)
        effect = self._effect(asked)
        ask = self._doing(tool, use, tool.probe, traces=False)

        def act() -> Performed:
            return self._noted(None, ask())

        performed = self._recorder.step(
            kind=effect.kind,
            role=effect.role,
            name=effect.name,
            digest=effect.digest,
            worst=effect.worst,
            act=act,
        )
        answer = artifacts.get_text(performed.output)
        return {"True": True, "False": False}.get(answer)

    def _tool(self, name: str) -> Tool:
        """An unknown or unauthorized tool counts as one of high impact that nobody approved."""
        if name not in self._grant.names or name not in self._registry:
            raise ApprovalRequired
        return self._registry[name]

    def _key(self, use: ToolUse) -> str:
        return f"lw-{self._run_id}-{use.key}"

    def _effect(self, use: ToolUse) -> Effect:
        return Effect(
            kind=StepKind.TOOL_CALL,
            role="tool",
            name=f"{use.tool} {self._key(use)}",
            digest=self._digest(use),
            worst=_ONE_CALL,
        )

    def _digest(self, use: ToolUse) -> str:
        """Of the key alone: other parameters under the same key are still the same action."""
        return digest_of(["plan tool", self._key(use)])

    def _context(self, use: ToolUse) -> ToolContext:
        return ToolContext(
            folder=self._box.folder,
            idempotency_key=self._key(use),
            seconds=seconds_for(self._recorder.lease),
            cancelled=self._recorder.lease.lost,
        )

    def _act(self, tool: Tool, use: ToolUse) -> partial[Said]:
        return self._doing(tool, use, tool.run, traces=tool.leaves_traces)

    def _doing(
        self, tool: Tool, use: ToolUse, function: Callable[..., Any], *, traces: bool
    ) -> partial[Said]:
        """The use or its probe; code that is not ours runs in a process of its own."""
        lease, context = self._recorder.lease, self._context(use)
        arguments = _arguments(tool, use.parameters)
        if tool.target:
            asks = function is tool.probe
            apart = Use(target=tool.target, context=context, arguments=arguments, probe=asks)
            return partial(run_apart, apart, lease, traces=traces)
        run = partial(function, context, arguments)
        return partial(bounded, run, lease, traces=traces, most_seconds=tool.most_seconds)

    def _noted(self, tool: Tool | None, said: Said) -> Performed:
        unknown = said.status is ToolStatus.OUTCOME_UNKNOWN
        changes = tool is not None and tool.in_workspace and tool.risk is not Risk.READ
        return Performed(
            result={"outcome": said.status.value, "error_code": said.error_code},
            output=artifacts.put_text(said.text),
            tree=self._box.note() if changes else "",
            usage=_ONE_CALL,
            status=StepStatus.OUTCOME_UNKNOWN if unknown else StepStatus.DONE,
        )

    def _outcome(self, use: ToolUse, result: Mapping[str, Any], output: str) -> ToolOutcome:
        text = artifacts.get_text(output)
        return ToolOutcome(
            status=ToolStatus(result["outcome"]),
            output=text,
            digest=output,
            call_id=self._key(use),
            error_code=result["error_code"],
            not_ready=says_not_ready(text),
        )

    def _check(self, use: ToolUse) -> ToolOutcome:
        name = str(use.parameters["name"])
        result = self._commands.check_for_agent(name, self._grant.checks[name])
        ending = "timed out" if result.timed_out else f"exited with {result.exit_code}"
        return ToolOutcome(
            status=ToolStatus.COMPLETED,
            output=f"{name} {ending}\n{result.output}",
            digest=result.artifact,
            call_id=self._key(use),
            not_ready=says_not_ready(result.output, result.exit_code),
        )

    def _earlier(self, use: ToolUse) -> ToolOutcome | None:
        """What an earlier worker or attempt did under this key, if it may have sent anything."""
        steps = Step.objects.filter(run_id=self._run_id, input_digest=self._digest(use))
        for step in steps.order_by("attempt_no", "seq"):
            if step.status in (StepStatus.DONE, StepStatus.OUTCOME_UNKNOWN) and step.result:
                return self._outcome(use, step.result, step.output)
            if ledger.may_have_been_sent(step):
                ledger.mark_unknown(self._recorder.lease.claim, step, _LOST)
                return ToolOutcome(
                    status=ToolStatus.OUTCOME_UNKNOWN,
                    output=_LOST,
                    call_id=self._key(use),
                    error_code="worker_lost",
                )
        return None


_LOST = "The worker was lost after it had begun: nobody knows whether it happened."


def _arguments(tool: Tool, parameters: Mapping[str, Any]) -> BaseModel:
    try:
        return tool.arguments.model_validate(dict(parameters), strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in found]
        raise ToolFault("bad_parameters", f"{tool.name}: {'; '.join(lines)}.") from None
