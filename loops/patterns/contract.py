"""A loop contract of your own, made by a registered builder (S1-7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any, NoReturn, cast

from pydantic import BaseModel, Field, ValidationError, field_validator

from loops.core.contract import LoopContract
from loops.core.effects import Effects
from loops.core.errors import ContractError, FormatFault
from loops.core.limits import Limits
from loops.core.strict_json import read_object
from loops.patterns.base import BuildInfo, JsonObject, Needs, Pattern, SpecFault, SpecModel
from loops.patterns.stalls import IdleAttempts, Returns, SameActions, SameFindings, Watcher
from loops.patterns.traced import KEY, Traced, loaded, traced
from loops.patterns.wrong_fields import wrong_fields

Builder = Callable[[dict[str, Any], BuildInfo, Effects], LoopContract[Any]]

_builders = {"retry_feature": "loops.patterns.examples:retry_feature"}


def register(name: str, target: str) -> None:
    """Make the builder at `module:function` known under a name.

    It gets the arguments, the build info and the effects, and returns a contract whose state is a
    pydantic model. It may use the effects in its callables only, not while it builds.
    """
    module, colon, function = target.partition(":")
    if not (module and colon and function):
        raise ContractError(f"builder {name!r} must be given as module:function, not {target!r}")
    _builders[name] = target


def builders() -> tuple[str, ...]:
    """The names that are registered."""
    return tuple(sorted(_builders))


class Spec(SpecModel):
    """Which contract to build."""

    builder: str = Field(
        title="Builder", description="The registered name of the function that builds the contract."
    )
    arguments: str = Field(
        default="{}",
        title="Arguments",
        description="A JSON object that is handed to the builder.",
        json_schema_extra={"multiline": True, "json": True},
    )
    same_finding_limit: SameFindings = 3
    same_action_limit: SameActions = 3
    idle_limit: IdleAttempts = 3
    return_limit: Returns = 2

    @field_validator("builder")
    @classmethod
    def _known(cls, builder: str) -> str:
        if builder not in _builders:
            raise ValueError(f"no builder is called {builder!r}; there are {', '.join(builders())}")
        return builder

    @field_validator("arguments")
    @classmethod
    def _json_object(cls, arguments: str) -> str:
        _arguments(arguments)
        return arguments


def _arguments(text: str) -> JsonObject:
    try:
        return read_object(text, shape="one JSON object", fault=FormatFault)
    except FormatFault as fault:
        raise ValueError(str(fault).replace("The answer", "The text")) from fault


class _Shut:
    """A door that no builder may open."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ContractError(f"a builder used the effect {name!r} while it builds")


_SHUT = Effects(
    agents=cast(Any, _Shut()), commands=cast(Any, _Shut()), workspace=cast(Any, _Shut())
)


def _built(spec: Spec, info: BuildInfo, effects: Effects) -> LoopContract[Any]:
    """What the builder makes. Raises `SpecFault` for whatever it does instead.

    It is somebody's own code: even an exit of it must not end a server or a worker.
    """
    module, _, function = _builders[spec.builder].partition(":")
    try:
        builder: Builder = getattr(import_module(module), function)
        contract: object = builder(_arguments(spec.arguments), info, effects)
    except ValidationError as error:
        refused = (str(one) for one in wrong_fields(error, noun="argument"))
        raise SpecFault("arguments", *refused) from error
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        message = f"{spec.builder!r} failed and built nothing ({said})"
        raise SpecFault("builder", message) from error
    return _checked(spec.builder, contract)


def _checked(name: str, contract: object) -> LoopContract[Any]:
    if not isinstance(contract, LoopContract):
        kind = type(contract).__name__
        raise SpecFault("builder", f"{name!r} must return a LoopContract, it returned {kind}")
    if not isinstance(contract.initial_state, BaseModel):
        raise SpecFault("builder", f"the state of {name!r} must be a pydantic model")
    if KEY in type(contract.initial_state).model_fields:
        message = f"the state of {name!r} must not have a field called {KEY!r}: rename it"
        raise SpecFault("builder", message)
    return contract


def _initial(spec: Spec) -> Traced:
    info = BuildInfo(local_aim=spec.builder, budget=1, seed="")
    return Traced(state=_built(spec, info, _SHUT).initial_state)


def _load_state(spec: Spec, stored: JsonObject) -> Traced:
    return loaded(type(_initial(spec).state), stored)


def build(spec: Spec, state: Traced, effects: Effects, info: BuildInfo) -> LoopContract[Traced]:
    """The builder's contract with the task's own aim and budget, whatever the builder set."""
    own = replace(
        _built(spec, info, effects),
        initial_state=state.state,
        local_aim=info.local_aim,
        budget=info.budget,
    )
    watcher = Watcher(spec=spec, info=info)
    return traced(own, start=state, watcher=watcher, workspace=effects.workspace)


PATTERN = Pattern(
    name="contract",
    summary="A loop contract of your own: any policy, any evaluator, the same bounded runner.",
    stops_when="Its evaluator accepts the state and its stopping condition fires.",
    spec=Spec,
    initial=_initial,
    build=build,
    load_state=_load_state,
    needs=lambda _: Needs(),
    open_roles=True,
    uses_workspace="optional",
    default_limits=Limits(iterations=3),
    default_on_limit="stop",
    example={"builder": "retry_feature", "arguments": '{"accept_up_to": 3}'},
)
