"""One call or one command and its checks, without a loop (S1-21, S2-43, S4-23)."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field, field_validator, model_validator

from loops.core.contract import (
    ActionDecision,
    Escalation,
    Evaluation,
    Judgment,
    LoopContext,
    LoopContract,
)
from loops.core.effects import Effects, Message
from loops.core.errors import ContractError
from loops.core.limits import Limits
from loops.patterns.asking import answer_of
from loops.patterns.base import (
    BuildInfo,
    CannotGoOn,
    Needs,
    Pattern,
    ResultFile,
    SpecModel,
    accepted,
)
from loops.patterns.commands import must_exist, named_checks
from loops.patterns.stalls import SameActions
from loops.patterns.watching import (
    USUAL_MAX_POLLS,
    USUAL_POLL_SECONDS,
    Checks,
    MaxPolls,
    NotReady,
    PollSeconds,
    Watching,
    red_of,
    waits,
)

ACTIONS = frozenset({"run_once"})
WORKER_ROLE = "worker"


class Spec(SpecModel):
    """What to do once, and how to know that it is right."""

    prompt: str = Field(
        default="",
        title="Prompt",
        description="What the agent should do. Give a prompt or a command, not both.",
        json_schema_extra={"multiline": True},
    )
    command: str = Field(
        default="",
        title="Command",
        description="A command to run in the repository. Exit code 0 is a success.",
    )
    edits_files: bool = Field(
        default=False,
        title="The agent edits files",
        description="Let the agent work in the repository instead of only answering.",
    )
    checks: list[str] = Field(
        default_factory=list,
        title="Checks",
        description="Commands that must pass afterwards, one per line.",
        json_schema_extra={"multiline": True},
    )
    poll_seconds: PollSeconds = USUAL_POLL_SECONDS
    max_polls: MaxPolls = USUAL_MAX_POLLS
    same_action_limit: SameActions = 3

    @field_validator("checks")
    @classmethod
    def _no_blank_check(cls, checks: list[str]) -> list[str]:
        if not all(check.strip() for check in checks):
            raise ValueError("a check must be a command, not an empty line")
        return checks

    @model_validator(mode="after")
    def _exactly_one(self) -> Spec:
        if bool(self.prompt.strip()) == bool(self.command.strip()):
            raise ValueError("give exactly one of prompt and command")
        if self.edits_files and self.command.strip():
            raise ValueError("edits_files is for an agent; a command always works in the files")
        return self


class State(Watching):
    """What the one pass came to."""

    answer: str = ""
    exit_code: int | None = None
    """Of the command; None for an agent and for a command that timed out."""
    red: tuple[str, ...] = ()
    """One line for the command, if it failed, and for each failed check."""


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """The two halves of the one attempt."""

    spec: Spec
    effects: Effects
    info: BuildInfo

    def act(self, context: LoopContext[State]) -> ActionDecision[State]:
        """Do it, then run every check unless the command itself failed."""
        try:
            state = self._done(context)
            if not state.red:
                red = red_of(self._checks.look(context.state))
                state = state.model_copy(update={"red": tuple(check.line for check in red)})
        except NotReady as wait:
            state = state.model_copy(update=wait.kept)
            return ActionDecision(action="run_once", state=state, not_yet=wait.later)
        except CannotGoOn as fault:
            escalation = Escalation(cause=fault.cause, reason=str(fault))
            return ActionDecision(action="run_once", escalation=escalation)
        return ActionDecision(action="run_once", state=state)

    def _done(self, context: LoopContext[State]) -> State:
        if waits(context.state, self.info):
            return context.state
        return self._command() if self.spec.command.strip() else self._agent(context)

    @property
    def _checks(self) -> Checks:
        return Checks(
            commands=self.effects.commands,
            info=self.info,
            checks=list(named_checks(self.spec.checks).items()),
            poll_seconds=self.spec.poll_seconds,
            max_polls=self.spec.max_polls,
        )

    def _command(self) -> State:
        command = self.spec.command
        result = self.effects.commands.fix("command", command)
        must_exist("command", command, result)
        ending = "timed out" if result.timed_out else f"exited with {result.exit_code}"
        red = () if result.passed else (f"command: {command.strip()} {ending}",)
        return State(exit_code=result.exit_code, red=red)

    def _agent(self, context: LoopContext[State]) -> State:
        prompt = self.spec.prompt
        if context.feedback:
            prompt = f"{prompt}\n\n{context.feedback}"
        agents = self.effects.agents
        reply = (
            agents.work(WORKER_ROLE, prompt, checks=named_checks(self.spec.checks))
            if self.spec.edits_files
            else agents.ask(WORKER_ROLE, [Message(role="user", content=prompt)])
        )
        return State(answer=answer_of(WORKER_ROLE, reply))


def _judge(state: State) -> Evaluation:
    if not state.red:
        return Evaluation(judgment=Judgment.SUCCESS, label="done")
    return Evaluation(
        judgment=Judgment.CONTINUE,
        feedback="\n".join(state.red),
        reasons=state.red,
        label="checks failed",
    )


def build(spec: Spec, state: State, effects: Effects, info: BuildInfo) -> LoopContract[State]:
    """The contract of the one attempt. Raises `ContractError` for any other budget."""
    if info.budget != 1:
        raise ContractError(f"one_pass runs exactly once: its budget is 1, not {info.budget}")
    return LoopContract(
        local_aim=info.local_aim,
        initial_state=state,
        action_policy=_Pass(spec=spec, effects=effects, info=info).act,
        evaluator=_judge,
        budget=info.budget,
        stopping_condition=accepted,
        authority_scope=info.scope(ACTIONS),
    )


def _needs(spec: Spec) -> Needs:
    by_agent = bool(spec.prompt.strip())
    return Needs(
        roles=frozenset({WORKER_ROLE} if by_agent else ()),
        workspace=bool(spec.command.strip() or spec.checks or spec.edits_files),
    )


PATTERN = Pattern(
    name="one_pass",
    summary="One call of an agent or one command, and the checks that must pass after it.",
    stops_when="After the one pass, whatever came of it.",
    spec=Spec,
    initial=lambda _: State(),
    build=build,
    load_state=lambda _, stored: State.model_validate(stored),
    needs=_needs,
    roles={WORKER_ROLE: False},
    uses_workspace="optional",
    allowed_actions=ACTIONS,
    default_limits=Limits(iterations=1),
    default_on_limit="stop",
    max_iterations=1,
    limit_reason=lambda _spec, _limits: "The one pass did not succeed.",
    result=lambda state: (
        ResultFile(name="answer.md", content=state.answer) if state.answer else None
    ),
    example={"command": "ruff format .", "checks": ["python -m pytest -q"]},
)
