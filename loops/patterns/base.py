"""What a pattern is: a spec, a state, and the contract built from both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from loops.core.contract import AuthorityScope, Evaluation, Judgment, LoopContract
from loops.core.effects import Effects
from loops.core.errors import ContractError, LoopwardenError
from loops.core.lifecycle import StopReason
from loops.core.limits import Limits
from loops.core.tooling import ToolGrant
from loops.core.wrapping import Tag, nonce_for, wrap

JsonObject = dict[str, Any]


class SpecModel(BaseModel):
    """The input of a pattern. Unknown fields are refused, so that a typing slip is seen.

    Fields are text, whole numbers, flags, choices or lists of lines, each with a title and a
    description: the submit form is made from them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


class StateModel(BaseModel):
    """What a loop hands from attempt to attempt. It survives a round trip through JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CannotGoOn(LoopwardenError):
    """The loop stops and somebody else decides. The message is the sentence for people."""

    cause: ClassVar[StopReason]


SpecT = TypeVar("SpecT", bound=SpecModel)
StateT = TypeVar("StateT", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """One thing in a submission that does not fit the pattern, with the remedy in its message."""

    field: str
    """Dotted name, such as `agents.coder`."""
    message: str


class SpecFault(ContractError):
    """Fields of the spec are well formed and still cannot be used."""

    def __init__(self, field: str, *messages: str) -> None:
        super().__init__("; ".join(f"spec.{field}: {message}" for message in messages))
        self.misfits = [Misfit(field=f"spec.{field}", message=message) for message in messages]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a person decided on something that the loop had asked (`Ask`)."""

    decision: str
    words: str
    shown: Mapping[str, Any]
    """Exactly what the person saw of it."""


@dataclass(frozen=True, kw_only=True)
class BuildInfo:
    """What a contract takes from the task and its run, apart from the spec."""

    local_aim: str
    budget: int
    """Maximum attempts, grants included."""
    seed: str
    """Makes the nonces of this run's prompts: the same for the same step, unknown to agents."""
    required_authority: str = "graph_governor"
    """Who decides what the loop may not (S1-13)."""
    answer: Answer | None = None
    """The newest answer to an `Ask` of this run. Whether it answers the open one is for the loop to
    tell, by what it had shown."""
    decided: str = ""
    """What a person decided on the last attempt: `continue` (its work stays), `refactor` (it was
    undone) or nothing."""

    @property
    def undone(self) -> bool:
        """Whether a person had the last attempt's work taken back."""
        return self.decided == "refactor"

    def scope(self, allowed_actions: frozenset[str]) -> AuthorityScope:
        """The authority scope with these actions."""
        return AuthorityScope(
            allowed_actions=allowed_actions, required_authority=self.required_authority
        )

    def wrap(self, tag: Tag, text: str) -> str:
        """Untrusted text for a prompt, with this run's nonce."""
        return wrap(tag, text, nonce=nonce_for(self.seed, tag, text))


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What one spec cannot do without."""

    roles: frozenset[str] = frozenset()
    workspace: bool = False


@dataclass(frozen=True, kw_only=True)
class ResultFile:
    """A result as a file of its own."""

    name: str
    content: str


def _no_tools(_spec: SpecModel) -> ToolGrant:
    return ToolGrant()


def accepted(evaluation: Evaluation) -> bool:
    """The usual stopping condition: the evaluator accepted the state."""
    return evaluation.judgment is Judgment.SUCCESS


def _iterations_used(_spec: SpecModel, limits: Limits) -> str:
    return f"All {limits.iterations} allowed iterations are used without success."


def _any_number(_spec: SpecModel, _iterations: int) -> str:
    return ""


def _no_result(_state: BaseModel) -> ResultFile | None:
    return None


@dataclass(frozen=True, kw_only=True)
class Pattern(Generic[SpecT, StateT]):
    """A way to loop. It builds a contract and has no loop of its own."""

    name: str
    summary: str
    """One plain sentence."""
    stops_when: str
    """One short sentence for the contract card."""
    spec: type[SpecT]
    initial: Callable[[SpecT], StateT]
    """The state of a new run."""
    build: Callable[[SpecT, StateT, Effects, BuildInfo], LoopContract[StateT]]
    load_state: Callable[[SpecT, JsonObject], StateT]
    """The state from its stored form."""
    needs: Callable[[SpecT], Needs]
    """What this spec requires of the task; `roles` and `uses_workspace` say what is possible."""
    roles: Mapping[str, bool] = field(default_factory=dict)
    """Roles of agents, and whether every task must name an agent for them."""
    open_roles: bool = False
    """Whether a task may name agents for further roles."""
    uses_workspace: Literal["none", "optional", "required"] = "none"
    allowed_actions: frozenset[str] = frozenset()
    """What the loop may do by itself. Empty when its builder decides."""
    default_limits: Limits = field(default_factory=lambda: Limits(iterations=5))
    default_on_limit: Literal["gate", "stop"] = "gate"
    max_iterations: int | None = None
    """The most iterations that make sense here; None for any number."""
    iterations_problem: Callable[[SpecT, int], str] = _any_number
    """Why a task with this spec may not ask for so many iterations; empty when it may."""
    limit_reason: Callable[[SpecT, Limits], str] = _iterations_used
    """The reason to report when the iterations are used up."""
    asks: bool = False
    """Whether its loop asks people questions of its own (`Ask`)."""
    tools: Callable[[SpecT], ToolGrant] = _no_tools
    """The tools that a task with this spec may use by itself."""
    result: Callable[[StateT], ResultFile | None] = _no_result
    """The result that is no change of a workspace."""
    example: Mapping[str, Any]
    """A valid spec, for documentation and tests."""

    def dump_state(self, state: StateT) -> JsonObject:
        """The stored form of a state."""
        return state.model_dump(mode="json")

    def misfits(
        self,
        spec: SpecT | None,
        *,
        iterations: int | None,
        roles: Collection[str],
        has_workspace: bool,
    ) -> list[Misfit]:
        """Everything that keeps a task from being carried out.

        A spec or a number that is wrong in itself is None: then only what holds for every one is
        looked at.
        """
        needs = self._least() if spec is None else self.needs(spec)
        return [
            *self._spec_misfits(spec),
            *self._role_misfits(needs, roles),
            *self._workspace_misfits(needs, has_workspace=has_workspace),
            *self._iteration_misfits(spec, iterations),
        ]

    def _least(self) -> Needs:
        """What every spec needs."""
        always = frozenset(role for role, needed in self.roles.items() if needed)
        return Needs(roles=always, workspace=self.uses_workspace == "required")

    def _spec_misfits(self, spec: SpecT | None) -> list[Misfit]:
        try:
            if spec is not None:
                self.initial(spec)
        except SpecFault as fault:
            return fault.misfits
        except ContractError as error:
            return [Misfit(field="spec", message=str(error))]
        return []

    def _role_misfits(self, needs: Needs, roles: Collection[str]) -> list[Misfit]:
        message = "is missing: name an agent profile"
        missing = sorted(needs.roles - set(roles))
        return [Misfit(field=f"agents.{role}", message=message) for role in missing]

    def _workspace_misfits(self, needs: Needs, *, has_workspace: bool) -> list[Misfit]:
        if needs.workspace and not has_workspace:
            message = f"{self.name} works on a repository: name its path"
        elif has_workspace and self.uses_workspace == "none":
            message = f"{self.name} does not use a repository: leave it out"
        else:
            return []
        return [Misfit(field="source.repo", message=message)]

    def _iteration_misfits(self, spec: SpecT | None, iterations: int | None) -> list[Misfit]:
        if iterations is None:
            return []
        problem = "" if spec is None else self.iterations_problem(spec, iterations)
        if self.max_iterations is not None and iterations > self.max_iterations:
            problem = f"must be at most {self.max_iterations} for {self.name}, not {iterations}"
        return [Misfit(field="limits.iterations", message=problem)] if problem else []
