"""What planner, executor and reviewer answer, read strictly: unknown fields are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from loops.core.canonical import canonical
from loops.core.errors import ContractError, FormatFault
from loops.core.plan import Plan, PlanStep, Risk
from loops.core.plan_review import (
    Finding,
    FindingStatus,
    InvalidPlanReview,
    Review,
    ReviewVerdict,
)
from loops.core.strict_json import read_object
from loops.core.text import storable
from loops.core.tooling import ToolFault

PLAN_SHAPE = (
    '{"goal": string, "assumptions": [strings], "steps": [{"id": string, "objective": string,'
    ' "dependsOn": [ids], "tool": string or null, "acceptanceCriteria": [strings],'
    ' "expectedEvidence": [strings], "risk": "read" or "reversible_write" or "high_impact"}]}'
)
PARAMETERS_SHAPE = '{"parameters": {...}}'
REVIEW_SHAPE = (
    '{"verdict": "accept" or "revise" or "blocked", "findings": [{"criterion": string,'
    ' "status": "met" or "not_met" or "not_verifiable", "evidenceIds": [ids],'
    ' "correction": string or null}]}'
)
_MOST_STEPS, _MOST_ITEMS, _MOST_CHARACTERS = 200, 100, 4_000


def _kept(text: str) -> str:
    if not storable(text):
        raise ValueError("holds a NUL or half of a surrogate pair")
    if not text.strip():
        raise ValueError("is blank")
    return text.strip()


_Text = Annotated[str, Field(max_length=_MOST_CHARACTERS), AfterValidator(_kept)]
_Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$")]
_Texts = Annotated[list[_Text], Field(max_length=_MOST_ITEMS)]


class InvalidPlan(FormatFault):
    """The planner's text is no plan. `code` is bad_shape, or one of the JSON reader's."""


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class _Step(_Answer):
    id: _Id
    objective: _Text
    depends_on: Annotated[list[_Id], Field(max_length=_MOST_ITEMS)]
    tool: Annotated[str, Field(min_length=1, max_length=60)] | None = None
    acceptance_criteria: _Texts
    expected_evidence: _Texts
    risk: Risk


class _Plan(_Answer):
    goal: _Text
    assumptions: _Texts
    steps: Annotated[list[_Step], Field(max_length=_MOST_STEPS)]


class _Finding(_Answer):
    criterion: _Text
    status: FindingStatus
    evidence_ids: Annotated[list[str], Field(max_length=_MOST_ITEMS)]
    correction: _Text | None = None


class _Review(_Answer):
    verdict: ReviewVerdict
    findings: Annotated[list[_Finding], Field(max_length=_MOST_STEPS)]


class _Parameters(_Answer):
    parameters: dict[str, Any]


PLAN_SCHEMA = _Plan.model_json_schema()
REVIEW_SCHEMA = _Review.model_json_schema()
AnswerT = TypeVar("AnswerT", bound=_Answer)


def read_plan(text: str) -> Plan:
    """The plan that the whole text is. Raises `InvalidPlan`, and nothing else."""
    read = _read(text, _Plan, PLAN_SHAPE, InvalidPlan)
    return Plan(
        goal=read.goal,
        assumptions=tuple(read.assumptions),
        steps=tuple(
            PlanStep(
                id=step.id,
                objective=step.objective,
                depends_on=tuple(step.depends_on),
                tool=step.tool,
                acceptance_criteria=tuple(step.acceptance_criteria),
                expected_evidence=tuple(step.expected_evidence),
                risk=step.risk,
            )
            for step in read.steps
        ),
    )


def read_parameters(text: str) -> Mapping[str, Any]:
    """The parameters that the whole text is, in a canonical form. Raises `ToolFault`."""
    parameters = _read(text, _Parameters, PARAMETERS_SHAPE, ToolFault).parameters
    try:
        canonical(parameters)
    except ContractError as error:
        raise ToolFault("bad_parameters", f"The parameters cannot be bound: {error}.") from error
    return parameters


def read_review(text: str) -> Review:
    """The review that the whole text is. Raises `InvalidPlanReview`, and nothing else."""
    read = _read(text, _Review, REVIEW_SHAPE, InvalidPlanReview)
    return Review(
        verdict=read.verdict,
        findings=tuple(
            Finding(
                criterion=one.criterion,
                status=one.status,
                evidence_ids=tuple(one.evidence_ids),
                correction=one.correction,
            )
            for one in read.findings
        ),
    )


def _read(text: str, kind: type[AnswerT], shape: str, fault: type[FormatFault]) -> AnswerT:
    data = read_object(text, shape=shape, fault=fault)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[:5]
        lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in found]
        raise fault("bad_shape", f"{'; '.join(lines)}. Send {shape}.") from None
