"""Opens what a result cites and looks for the words it quotes; no model is asked (S2-31)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from loops.core.citations import MOST_LINKS, Citation, citations, links, says
from loops.core.plan_review import Finding, FindingStatus
from loops.core.tooling import ToolFault, Tools, ToolStatus, ToolUse
from loops.patterns.plan_state import State

HTTP_GET = "http_get"
CHANGE_CHARACTERS = 1_000_000
_MOST_WORDS, _MOST_PAGES = 300, 2_000
_SUCCESS = re.compile("2[0-9][0-9]")
_FEWER = f"citation: the result cites at most {MOST_LINKS} links"


@dataclass(frozen=True, kw_only=True)
class Cited:
    """What opening the links showed."""

    sources: list[tuple[str, str, str]] = field(default_factory=list)
    """Source, digest and summary of each, for the evidence."""
    red: list[Finding] = field(default_factory=list)


def can_open(tools: Tools) -> bool:
    """Whether links can be opened here."""
    return HTTP_GET in tools.authorized() and HTTP_GET in tools.available()


def cited(state: State, change: str) -> tuple[Citation, ...]:
    """What the result cites: its texts, and the lines that were added to the workspace.

    A text that was written to correct a citation takes the place of the one that it corrects.
    """
    found: list[Citation] = []
    for result in filter(lambda one: one.text, state.results):
        corrected = set(state.step(result.step_id).acceptance_criteria)
        found = [one for one in found if not corrected & {_FEWER, *_criteria(one)}]
        found += citations(result.text)
    return tuple(dict.fromkeys([*found, *citations(_added(change))]))


def opened(tools: Tools, state: State, claims: Iterable[Citation]) -> Cited:
    """Open each link once and compare. What is red says what a correction has to reach."""
    claims = list(claims)
    urls = links(claims)
    if len(urls) > MOST_LINKS:
        return Cited(red=[_red(_FEWER, f"There are {len(urls)}, and none was opened.")])
    report, pages = Cited(), dict[str, str]()
    for number, url in enumerate(urls, 1):
        key = f"cited-{state.revision}-{number}"
        digest, why, page = _open(tools, ToolUse(key=key, tool=HTTP_GET, parameters={"url": url}))
        report.sources.append((f"citation: {url}", digest, why or "It opens."))
        if why:
            report.red.append(_red(_opens(url), why))
        else:
            pages[url] = page
    report.red.extend(_unsaid(claims, pages))
    return report


def _unsaid(claims: Iterable[Citation], pages: Mapping[str, str]) -> Iterable[Finding]:
    """A link that does not open is red already, with all that is quoted from it."""
    for claim in claims:
        there = [pages[url] for url in claim.urls if url in pages]
        if claim.quote and there and not any(says(page, claim.quote) for page in there):
            yield _red(_holds(claim), "The page does not say it.")


def _open(tools: Tools, use: ToolUse) -> tuple[str, str, str]:
    """The digest of what came, why the link does not open, if so, and the page."""
    try:
        tools.check(use.tool, use.parameters)
    except ToolFault as fault:
        return "", f"It does not open: {fault}", ""
    outcome = tools.use(use)
    status, _, page = outcome.output.partition("\n")
    if outcome.status is ToolStatus.COMPLETED and _SUCCESS.fullmatch(status):
        return outcome.digest, "", page
    return outcome.digest, f"It does not open: {status[:_MOST_WORDS]}.", ""


def _added(change: str) -> str:
    """The lines that a patch adds; what lies between keeps them apart."""
    lines = change.split("\n")
    plus = [one[1:] if one[:1] == "+" and one[:4] != "+++ " else "" for one in lines]
    return "\n".join(plus)


def _criteria(claim: Citation) -> list[str]:
    return [*map(_opens, claim.urls), *([_holds(claim)] if claim.quote else [])]


def _opens(url: str) -> str:
    return f"citation: {url[:_MOST_PAGES]} opens"


def _holds(claim: Citation) -> str:
    pages = " or ".join(claim.urls)[:_MOST_PAGES]
    return f'citation: {pages} says: "{claim.quote[:_MOST_WORDS]}"'


def _red(criterion: str, why: str) -> Finding:
    return Finding(
        criterion=criterion,
        status=FindingStatus.NOT_MET,
        correction=f"{why} Cite what a page that opens says, or leave it out.",
    )
