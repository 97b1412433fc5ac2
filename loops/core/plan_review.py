"""A review as typed findings on evidence, never a feeling (S2-27 to S2-30)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from loops.core.errors import FormatFault
from loops.core.plan import normalised


class ReviewVerdict(StrEnum):
    """What a reviewer may decide."""

    ACCEPT = "accept"
    REVISE = "revise"
    BLOCKED = "blocked"


class FindingStatus(StrEnum):
    """How a criterion stands."""

    MET = "met"
    NOT_MET = "not_met"
    NOT_VERIFIABLE = "not_verifiable"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One criterion and the evidence for how it stands."""

    criterion: str
    status: FindingStatus
    evidence_ids: tuple[str, ...] = ()
    correction: str | None = None

    @property
    def open(self) -> bool:
        """Whether something remains to be done for it."""
        return self.status is not FindingStatus.MET

    @property
    def key(self) -> str:
        """The same for a finding that only says the same again (S2-G2)."""
        said = (self.criterion, self.status, self.correction or "")
        return "\n".join(normalised(part) for part in said)

    @property
    def line(self) -> str:
        """For people."""
        words = self.status.replace("_", " ")
        return f"{self.criterion}: {words}{f'. {self.correction}' if self.correction else ''}"


@dataclass(frozen=True, kw_only=True)
class Review:
    """A verdict with one finding for every criterion."""

    verdict: ReviewVerdict
    findings: tuple[Finding, ...]

    @property
    def open_findings(self) -> tuple[Finding, ...]:
        """What remains."""
        return tuple(finding for finding in self.findings if finding.open)


class InvalidPlanReview(FormatFault):
    """The reviewer's answer contradicts itself or its evidence.

    `code` is one of no_evidence, unknown_evidence, failed_evidence, unknown_criterion,
    duplicate_criterion, missing_criterion, accept_with_open_findings, nothing_open, or what the
    reader of its shape found.
    """


def check_review(
    review: Review,
    *,
    criteria: Sequence[str],
    evidence: Collection[str],
    proof: Collection[str],
) -> None:
    """Raise `InvalidPlanReview` unless every claim in it rests on something (S2-29).

    `proof` are the ids of the evidence of what was completed: what failed shows no success.
    """
    for finding in review.findings:
        _check_finding(finding, criteria, evidence, proof)
    named = [finding.criterion for finding in review.findings]
    twice = next((one for one in named if named.count(one) > 1), None)
    if twice is not None:
        raise InvalidPlanReview("duplicate_criterion", f"{twice!r} has more than one finding.")
    missing = next((one for one in criteria if one not in named), None)
    if missing is not None:
        raise InvalidPlanReview("missing_criterion", f"There is no finding for {missing!r}.")
    if review.verdict is ReviewVerdict.ACCEPT and review.open_findings:
        first = review.open_findings[0].criterion
        raise InvalidPlanReview(
            "accept_with_open_findings", f"The verdict is accept, but {first!r} is not met."
        )
    if review.verdict is ReviewVerdict.REVISE and not review.open_findings:
        raise InvalidPlanReview(
            "nothing_open", "The verdict is revise, but every criterion is met. Say what is not."
        )


def outranked(review: Review, red: Sequence[Finding]) -> Review:
    """The review as it counts: a red check turns an acceptance into a revision (S2-30)."""
    if not red:
        return review
    verdict = review.verdict
    if verdict is ReviewVerdict.ACCEPT:
        verdict = ReviewVerdict.REVISE
    return replace(review, verdict=verdict, findings=(*review.findings, *red))


def repeated_finding(review: Review, before: Collection[str]) -> Finding | None:
    """The first open finding whose key an earlier review had too (S2-34)."""
    return next((finding for finding in review.open_findings if finding.key in before), None)


def _check_finding(
    finding: Finding,
    criteria: Sequence[str],
    evidence: Collection[str],
    proof: Collection[str],
) -> None:
    about = repr(finding.criterion)
    if finding.criterion not in criteria:
        raise InvalidPlanReview("unknown_criterion", f"{about} is none of the given criteria.")
    unknown = [one for one in finding.evidence_ids if one not in evidence]
    if unknown:
        raise InvalidPlanReview(
            "unknown_evidence", f"{about} names {unknown[0]!r}, which is no evidence id."
        )
    if finding.status is FindingStatus.MET and not finding.evidence_ids:
        raise InvalidPlanReview(
            "no_evidence", f"{about} is called met without an evidence id. Name one."
        )
    if finding.status is FindingStatus.MET and not set(finding.evidence_ids) & set(proof):
        raise InvalidPlanReview(
            "failed_evidence",
            f"{about} is called met by nothing but what failed. Name the evidence of a completed"
            " step or of a check that passed, or say not_met.",
        )
