"""A review must rest on evidence (S2-28 to S2-30, S2-34, S2-G2)."""

from __future__ import annotations

from typing import Any

import pytest

from loops.core.plan_review import (
    Finding,
    FindingStatus,
    InvalidPlanReview,
    Review,
    ReviewVerdict,
    check_review,
    outranked,
    repeated_finding,
)

CRITERIA, EVIDENCE = ("a.txt exists", "pytest exits with 0"), {"e1", "e2", "e3"}
PROOF = {"e1", "e2"}


def finding(criterion: str = CRITERIA[0], status: str = "met", *ids: str, **facts: Any) -> Finding:
    return Finding(
        criterion=criterion, status=FindingStatus(status), evidence_ids=ids or (), **facts
    )


def review(verdict: str, *findings: Finding) -> Review:
    return Review(verdict=ReviewVerdict(verdict), findings=findings)


MET = (finding(CRITERIA[0], "met", "e1"), finding(CRITERIA[1], "met", "e2"))
RED = finding("check 1 passes", "not_met", "e3", correction="Make `pytest` pass.")


def code(found: Review) -> str:
    try:
        check_review(found, criteria=CRITERIA, evidence=EVIDENCE, proof=PROOF)
    except InvalidPlanReview as fault:
        return fault.code
    return ""


def test_s2_28_a_review_that_covers_every_criterion_with_evidence_is_valid() -> None:
    assert code(review("accept", *MET)) == ""
    assert code(review("revise", MET[0], finding(CRITERIA[1], "not_met"))) == ""
    assert code(review("blocked", MET[0], finding(CRITERIA[1], "not_verifiable"))) == ""


def test_s2_29_met_without_evidence_is_invalid() -> None:
    assert code(review("accept", finding(), MET[1])) == "no_evidence"


def test_s2_29_an_unknown_evidence_id_is_invalid_whatever_the_status() -> None:
    for status in FindingStatus:
        made_up = finding(CRITERIA[0], status, "e9")
        assert code(review("revise", made_up, MET[1])) == "unknown_evidence"


@pytest.mark.parametrize(
    ("findings", "verdict", "expected"),
    [
        ((MET[0],), "accept", "missing_criterion"),
        ((*MET, MET[0]), "accept", "duplicate_criterion"),
        ((*MET, finding("be nice", "met", "e1")), "accept", "unknown_criterion"),
        ((MET[0], finding(CRITERIA[1], "not_met")), "accept", "accept_with_open_findings"),
        (MET, "revise", "nothing_open"),
        ((MET[0], finding(CRITERIA[1], "met", "e3")), "accept", "failed_evidence"),
        ((MET[0], finding(CRITERIA[1], "met", "e3", "e2")), "accept", ""),
        ((MET[0], finding(CRITERIA[1], "not_met", "e3")), "revise", ""),
    ],
)
def test_s2_28_a_review_that_contradicts_itself_is_invalid(
    findings: tuple[Finding, ...], verdict: str, expected: str
) -> None:
    assert code(review(verdict, *findings)) == expected


def test_s2_30_a_red_check_outranks_an_acceptance() -> None:
    counted = outranked(review("accept", *MET), [RED])
    assert counted.verdict is ReviewVerdict.REVISE
    assert counted.open_findings == (RED,)
    assert outranked(review("accept", *MET), []).verdict is ReviewVerdict.ACCEPT
    assert outranked(review("blocked", *MET), [RED]).verdict is ReviewVerdict.BLOCKED


def test_s2_34_s2_g2_the_same_finding_is_the_same_criterion_status_and_correction() -> None:
    first = finding(CRITERIA[0], "not_met", "e1", correction="Write `a.txt`.")
    before = {first.key}
    same = finding(CRITERIA[0], "not_met", "e2", correction="write  a.txt")
    other = finding(CRITERIA[0], "not_met", correction="Write b.txt")
    softer = finding(CRITERIA[0], "not_verifiable", correction="Write `a.txt`.")
    assert repeated_finding(review("revise", same), before) is same
    assert repeated_finding(review("revise", other, softer), before) is None


def test_s2_34_a_finding_that_is_met_never_repeats() -> None:
    assert repeated_finding(review("accept", *MET), {one.key for one in MET}) is None
