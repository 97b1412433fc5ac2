"""Reading requests: strict JSON, known fields only, one error per wrong field."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import IO, Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from dashboard.api.problems import Refusal, pointer
from loops.core.text import cleaned
from loops.patterns.wrong_fields import WrongField, wrong_fields
from loops.store.submit import Problem, text_problem
from workers.intake import TaskRequest

MOST_BYTES, MOST_DEPTH = 1_000_000, 32
MICRO = Decimal(1_000_000)
INVALID = "Some fields are not as they must be."
Whole = Annotated[int, Field(le=1_000_000_000)]
BodyT = TypeVar("BodyT", bound=BaseModel)


class AlwaysJSON(BaseContentNegotiation):
    """There is one representation; `Accept` cannot ask for another."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser | None:
        """The JSON parser for a JSON body; None is answered with 415."""
        sent = (request.content_type or "").partition(";")[0].strip().lower()
        return next(iter(parsers)) if sent == "application/json" else None

    def select_renderer(
        self, _request: Request, renderers: Iterable[BaseRenderer], _suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """The JSON renderer."""
        renderer = next(iter(renderers))
        return renderer, str(renderer.media_type)


class StrictJSONParser(BaseParser):
    """JSON without what could be read in two ways: duplicate keys, NaN, endless nesting."""

    media_type = "application/json"

    def parse(
        self, stream: IO[bytes], _media_type: str | None = None, _context: Any = None
    ) -> dict[str, Any]:
        """The body as an object."""
        data = stream.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise Refusal(413, "too_large", f"The body has more than {MOST_BYTES:,} bytes.")
        try:
            body = json.loads(data.decode(), object_pairs_hook=unique, parse_constant=_no_constant)
        except RecursionError as error:
            raise Refusal(400, "too_deep", f"Nested deeper than {MOST_DEPTH} levels.") from error
        except ValueError as error:
            raise Refusal(400, "malformed_json", f"The body is no valid JSON: {error}") from error
        check_depth(body)
        if not isinstance(body, dict):
            raise Refusal(400, "malformed_json", "The body must be one JSON object.")
        return body


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands there twice")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def check_depth(value: Any, depth: int = 0) -> None:
    """No nesting without end."""
    if depth > MOST_DEPTH:
        raise Refusal(400, "too_deep", f"Nested deeper than {MOST_DEPTH} levels.")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        check_depth(item, depth + 1)


class Body(BaseModel):
    """Known fields only, nothing guessed."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Money(Body):
    """An amount as a decimal string."""

    amount: Annotated[str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,6})?$")]
    currency: Literal["USD"]


class LimitsBody(Body):
    """Caps of a run; an axis that is left out has no cap."""

    iterations: Whole | None = None
    model_calls: Whole | None = None
    tool_calls: Whole | None = None
    tokens: Whole | None = None
    cost: Money | None = None
    errors: Whole | None = None
    active_seconds: Whole | None = None
    deadline_seconds: Whole | None = None

    def as_limits(self) -> dict[str, Any]:
        """The caps that were given, in stored units."""
        given = self.model_dump(exclude={"cost"}, exclude_none=True)
        if self.cost is not None:
            given["cost_microusd"] = int(Decimal(self.cost.amount) * MICRO)
        return given


class SourceBody(Body):
    """Where the workspace comes from."""

    repo: str
    include_dirty: bool = False


class AskedBody(Body):
    """What tasks and nodes of graphs ask for. What there must be is for the intake to say."""

    pattern: str = ""
    title: str = ""
    aim: str = ""
    spec: dict[str, Any] = Field(default_factory=dict)
    limits: LimitsBody = Field(default_factory=LimitsBody)
    agents: dict[str, str] = Field(default_factory=dict)
    on_limit: str = ""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0

    def asked(self, *, repo: str | None, include_dirty: bool) -> TaskRequest:
        """The same for the intake, with the repository to work on."""
        return TaskRequest(
            pattern=self.pattern,
            title=self.title,
            local_aim=self.aim,
            spec=self.spec,
            limits=self.limits.as_limits(),
            agents=self.agents,
            on_limit=self.on_limit,
            priority=self.priority,
            repo=repo,
            include_dirty=include_dirty,
        )


class TaskBody(AskedBody):
    """A task to submit."""

    source: SourceBody | None = None

    def as_request(self) -> TaskRequest:
        """The same for the intake."""
        source = self.source
        return self.asked(
            repo=source.repo if source else None,
            include_dirty=source.include_dirty if source else False,
        )


class DecisionBody(Body):
    """A person's decision on exactly what was shown."""

    decision: str
    digest: str
    guidance: str = ""
    iterations: Annotated[int, Field(le=1_000_000)] | None = None


class HoldBody(Body):
    """Why something is paused or resumed; `seen` is the id of the hold that is to be lifted."""

    why: Annotated[str, Field(max_length=1000)] = ""
    seen: Annotated[str, Field(max_length=300)] = ""


def read(kind: type[BodyT], data: Any) -> BodyT:
    """The body as this kind, or a refusal that names every wrong field."""
    data, places = cleaned(data)
    problems = [text_problem(place) for place in places]
    try:
        body = kind.model_validate(data)
    except ValidationError as error:
        problems += problems_in(kind, error)
    if problems:
        raise Refusal(400, "invalid", INVALID, errors_of(problems))
    return body


def read_most(kind: type[BodyT], data: Any) -> tuple[BodyT, list[Problem]]:
    """As much of the body as can be read, and what is wrong with the rest of it.

    Every field of the kind must have a default. A wrong field is left out; a wrong item takes its
    list along, or the places of the others would no longer be theirs.
    """
    data, places = cleaned(data)
    problems = [text_problem(place) for place in places]
    while True:
        try:
            return kind.model_validate(data), problems
        except ValidationError as error:
            named = {problem.field for problem in problems}
            problems += [p for p in problems_in(kind, error) if p.field not in named]
            for wrong in wrong_fields(error):
                data = _without(data, wrong.where)


def _without(data: Any, where: tuple[int | str, ...]) -> Any:
    """The data without what stands there, or without what lacks it."""
    if not where or not isinstance(data, dict):
        return {}
    first, *rest = where
    if first not in data:
        return data
    kept = {key: value for key, value in data.items() if key != first}
    inner = data[first]
    if rest and isinstance(inner, dict) and rest[0] in inner:
        kept[first] = _without(inner, tuple(rest))
    return kept


def errors_of(
    problems: Iterable[Problem], name: Callable[[str], str] = str
) -> list[dict[str, str]]:
    """The problems as a problem document lists them; `name` is what the body calls a field."""
    return [
        {"pointer": pointer(name(found.field)), "code": found.code, "detail": found.message}
        for found in problems
    ]


def problems_in(kind: type[BaseModel], error: ValidationError) -> list[Problem]:
    """One problem for each wrong field."""
    return [_field_problem(kind, wrong) for wrong in wrong_fields(error)]


def _field_problem(kind: type[BaseModel], wrong: WrongField) -> Problem:
    code, detail = wrong.code, wrong.message
    if code == "extra_forbidden":
        code, detail = "unknown_field", f"{detail}{_guess(kind, [str(p) for p in wrong.where])}"
    elif code == "string_pattern_mismatch":
        detail = "must be an amount in digits, such as 2.50"
    return Problem(field=wrong.name, code=code, message=detail)


def _guess(kind: type[BaseModel], where: list[str]) -> str:
    for part in where[:-1]:
        if part.isdigit():
            continue
        inner = kind.model_fields[part].annotation
        inners = [inner, *getattr(inner, "__args__", ())]
        kind = next(one for one in inners if isinstance(one, type) and issubclass(one, BaseModel))
    known = sorted(item.alias or name for name, item in kind.model_fields.items())
    close = difflib.get_close_matches(where[-1], known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are: {', '.join(known)}"
