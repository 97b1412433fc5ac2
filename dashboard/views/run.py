"""The page of one task and its newest run."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from dashboard import holding
from dashboard.clocks import clocks
from dashboard.diffs import diff_of
from dashboard.queues import open_items
from dashboard.texts import stored_head, stored_tail
from dashboard.timeline import AttemptLine, timeline
from dashboard.views.fragments import live_page
from loops import clock, gates
from loops.admission import why_waiting
from loops.core.lifecycle import RunStatus
from loops.day_figures import day_meters, day_of
from loops.figures import (
    account,
    calibration,
    cap_hits,
    effective_status,
    is_over,
    meters,
    sentence,
)
from loops.models import Escalation, ProjectDay, Run
from loops.patterns import UnknownPattern, get
from loops.store import artifacts, days, holds

TABS = {
    "timeline": "Timeline",
    "diff": "Diff to base",
    "checks": "Checks",
    "transcript": "Transcript",
    "events": "Events",
}
MOST_ATTEMPTS, MOST_EVENTS, FEW_EVENTS = 30, 200, 20
OUTPUT_LINES, ANSWER_LINES = 200, 400
_DIGEST = re.compile(r"[0-9a-f]{64}")


@login_required
@require_safe
def task(request: HttpRequest, pk: int) -> HttpResponse:
    """Timeline, diff, checks, transcript or events; contract and result beside them."""
    run = _newest_run(pk)
    tab = request.GET.get("tab", "timeline")
    tab = tab if tab in TABS else "timeline"
    before = _number(request, "before")
    lines, earlier = timeline(run, most=MOST_ATTEMPTS, before=before)
    held = [] if is_over(run) else holds.of_runs([run]).get(run.pk, [])
    item = open_items().filter(run=run).first() if run.status == RunStatus.AT_GATE else None
    now, day = clock.now(), day_of(run)
    result = run.result if isinstance(run.result, dict) else {}
    context: dict[str, Any] = {
        "section": "tasks",
        "run": run,
        "task": run.task,
        "tabs": TABS,
        "tab": tab,
        "why": holding.sentence(held, run) or _why(run, day),
        "held": next((one for one in held if one.run_id), None),
        "target": f"run:{run.pk}",
        "request_id": secrets.token_urlsafe(16),
        "over": is_over(run),
        "meters": [*meters(run), *(day_meters(day) if day else ())],
        "clocks": clocks(run, now),
        "lines": lines,
        "earlier": lines[-1].attempt.no if earlier else None,
        "rail_attempts": [line.attempt for line in reversed(lines)],
        "item": item,
        "events": run.events.order_by("-seq")[: MOST_EVENTS if tab == "events" else FEW_EVENTS],
        "most_events": MOST_EVENTS,
        "contract": _contract(run),
        "result": result,
        "account": account(run, item),
        "produced": stored_head(result["text"], ANSWER_LINES) if result.get("text") else None,
        **_tab_context(request, tab, run, lines, item),
    }
    return live_page(request, "task", "parts/task", context)


@login_required
@require_POST
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop the newest run. Cancelling twice is no error."""
    run = _newest_run(pk)
    if not gates.cancel(run, actor=request.user.get_username()):
        messages.info(request, "The run has ended already, or its cancel was asked for before.")
    return redirect("task", pk=pk)


@login_required
@require_safe
def artifact(request: HttpRequest, pk: int, digest: str) -> HttpResponse:
    """One stored text of this task, as a file: it never runs or renders in the page."""
    if not _belongs(pk, digest):
        raise Http404
    try:
        data = artifacts.get(digest)
    except FileNotFoundError as error:
        raise Http404 from error
    kind = request.GET.get("as", "output")
    ending = "patch" if kind == "patch" else "txt"
    name = f"T-{pk}-{digest[:8]}.{ending}"
    return HttpResponse(
        data,
        content_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "X-Content-Type-Options": "nosniff",
        },
    )


def _newest_run(task_id: int) -> Run:
    found = days.marked(Run.objects.select_related("task__project", "task__created_by"))
    run = found.filter(task_id=task_id).order_by("-number").first()
    if run is None:
        raise Http404
    return run


def _why(run: Run, day: ProjectDay | None) -> str:
    """One sentence: why it is where it is."""
    status, _ = effective_status(run)
    if status is not RunStatus(run.status):
        return sentence(run)
    if run.cancel_requested and not is_over(run):
        return "It stops as soon as its worker hears of the cancel."
    if status is RunStatus.QUEUED:
        return why_waiting(run, day)
    return "" if status is RunStatus.RUNNING else sentence(run)


@dataclass(frozen=True, kw_only=True)
class SpecLine:
    """One field of the spec on the contract card."""

    title: str
    text: str = ""
    commands: tuple[str, ...] = ()


def _contract(run: Run) -> dict[str, Any]:
    """What the pattern says of itself, and the fields that the task fills."""
    titles, usual, stops_when = {}, {}, ""
    try:
        pattern = get(run.task.pattern)
    except UnknownPattern:
        pass  # an older installation knew it; the spec can still be read
    else:
        stops_when = pattern.stops_when
        fields = pattern.spec.model_fields.items()
        titles = {name: item.title for name, item in fields}
        usual = {name: item.get_default(call_default_factory=True) for name, item in fields}
    lines = [
        _spec_line(titles.get(name) or name, value)
        for name, value in run.task.spec_dict.items()
        if value not in ("", [], None, run.task.local_aim, usual.get(name))
    ]
    return {
        "stops_when": stops_when,
        "spec": lines,
        "rate": cap_hits(run.task),
        "people": calibration(run.task),
    }


def _spec_line(title: str, value: Any) -> SpecLine:
    if isinstance(value, list):
        return SpecLine(title=title, commands=tuple(str(one) for one in value))
    return SpecLine(title=title, text="yes" if value is True else str(value))


def _tab_context(
    request: HttpRequest,
    tab: str,
    run: Run,
    lines: list[AttemptLine],
    item: Escalation | None,
) -> dict[str, Any]:
    if tab == "diff":
        digest = _patch(run, item)
        return {"patch": digest, "diff": diff_of(digest) if digest else None}
    if tab not in ("checks", "transcript") or not lines:
        return {}
    number = _number(request, "attempt")
    line = next((one for one in lines if one.attempt.no == number), lines[0])
    if tab == "checks":
        outputs = [(step, stored_tail(step.step.output, OUTPUT_LINES)) for step in line.checks]
        return {"line": line, "outputs": outputs}
    talk = [
        (
            step,
            stored_head(step.step.prompt, ANSWER_LINES),
            stored_head(step.step.output, ANSWER_LINES),
        )
        for step in line.talk
    ]
    return {"line": line, "talk": talk}


def _patch(run: Run, item: Escalation | None) -> str:
    for source in (run.result, item.packet if item else None):
        digest = source.get("patch") if isinstance(source, dict) else None
        if isinstance(digest, str) and digest:
            return digest
    return ""


def _belongs(task_id: int, digest: str) -> bool:
    if not _DIGEST.fullmatch(digest):
        return False
    of_step = Q(steps__output=digest) | Q(steps__prompt=digest)
    of_end = Q(result__patch=digest) | Q(result__text=digest) | Q(escalations__packet__patch=digest)
    mine = Run.objects.filter(task_id=task_id)
    return mine.filter(of_step).exists() or mine.filter(of_end).exists()


def _number(request: HttpRequest, name: str) -> int | None:
    value = request.GET.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else None
