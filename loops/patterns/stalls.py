"""No loop may stand still: the thresholds of `loops.core.progress` as fields, and who applies them.

A pattern keeps its trail in its state, notes a mark in each attempt and lets `Watcher.judged` have
the last word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from loops.core.contract import Evaluation, Judgment
from loops.core.progress import Mark, Thresholds, noted, stall
from loops.patterns.base import BuildInfo, SpecModel

MOST = 12
USUAL_ACTIONS = 3

SameFailures = Annotated[
    int,
    Field(
        ge=0,
        le=MOST,
        title="Same failure in a row",
        description="It stops when the checks fail so often in the same way; 0 for never. Places in"
        " files, times, process ids and addresses in their output do not count.",
    ),
]
SameFindings = Annotated[
    int,
    Field(
        ge=0,
        le=MOST,
        title="Same finding in a row",
        description="It stops when so many reviews ask for the same; 0 for never.",
    ),
]
IdleAttempts = Annotated[
    int,
    Field(
        ge=0,
        le=MOST,
        title="Attempts without a change",
        description="It stops when so many attempts in a row change nothing; 0 for never.",
    ),
]
SameActions = Annotated[
    int,
    Field(
        ge=0,
        le=MOST,
        title="Same action in a row",
        description="It stops when the same is done so often with the same result, such as one use"
        " of a tool; 0 for never. What is not ready yet does not count.",
    ),
]
Returns = Annotated[
    int,
    Field(
        ge=0,
        le=MOST // 2,
        title="Returns in a row",
        description="It stops when the work goes back and forth between two states so often:"
        " A, B, A, B are 2 returns; 0 for never.",
    ),
]


def thresholds_of(spec: SpecModel) -> Thresholds:
    """Those among the fields of a spec. What has no field is off, but for equal actions."""
    return Thresholds(
        failures=getattr(spec, "same_failure_limit", 0),
        findings=getattr(spec, "same_finding_limit", 0),
        idle=getattr(spec, "idle_limit", 0),
        actions=getattr(spec, "same_action_limit", USUAL_ACTIONS),
        returns=getattr(spec, "return_limit", 0),
    )


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """Sees that one run stands still."""

    spec: SpecModel
    info: BuildInfo

    def known(self, trail: Sequence[Mark]) -> tuple[Mark, ...]:
        """The trail so far; after a person let the run go on it begins anew."""
        return () if self.info.decided else tuple(trail)

    def noted(self, trail: Sequence[Mark], mark: Mark) -> tuple[Mark, ...]:
        """The trail with this attempt's mark."""
        return noted(self.known(trail), mark)

    def judged(
        self, evaluation: Evaluation, trail: Sequence[Mark], attempt: int, detail: str = ""
    ) -> Evaluation:
        """The evaluation, unless the loop would go on without getting anywhere.

        In the last attempt, and where a person looks anyway, there is nothing to stop.
        """
        goes_on = evaluation.judgment is Judgment.CONTINUE and not evaluation.pause
        if not goes_on or attempt >= self.info.budget:
            return evaluation
        stalled = stall(trail, thresholds_of(self.spec))
        if stalled is None:
            return evaluation
        sentence = f"{stalled.sentence} {detail}".strip()
        return replace(
            evaluation, judgment=Judgment.ESCALATE, cause=stalled.cause, feedback=sentence
        )


def with_findings(trail: Sequence[Mark], findings: tuple[str, ...]) -> tuple[Mark, ...]:
    """The trail whose last attempt was asked for this."""
    if not trail:
        return ()
    return (*trail[:-1], replace(trail[-1], findings=findings))
