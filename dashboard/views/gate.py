"""The gate: what waits for a person, and the one item that is looked at."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.context import read_nav
from dashboard.diffs import diff_of
from dashboard.queues import open_items, rail_attempts
from dashboard.texts import head
from dashboard.views.fragments import live_page
from loops.core.lifecycle import StopReason
from loops.figures import in_words, item_status
from loops.gates import MOST_ROUNDS, USUAL_ROUNDS, BadDecision, NotPossibleNow, decide
from loops.models import Decision, Escalation, EscalationStatus
from loops.store.days import CAPPED
from loops.store.runs import MovedOn

PAGE = 50
CODE_LINES = 400
_NO_FINDING = ("asks", "raises_graph", "raises_day")
_WORDS_FOR: dict[str, str] = {
    StopReason.APPROVAL: "To reject it: why, and what to do instead",
    StopReason.INPUT: "Your answer",
    StopReason.OUTCOME_UNKNOWN: "What you know of it",
}


@login_required
@require_safe
def gate(request: HttpRequest) -> HttpResponse:
    """The inbox with its first item open."""
    first = _inbox_page(0).first()
    return _page(request, _read(first.pk) if first else None)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def gate_item(request: HttpRequest, pk: int) -> HttpResponse:
    """The inbox with this item open, decided or not; a POST decides it."""
    if request.method == "POST":
        return _decide(request, pk)
    return _page(request, _read(pk))


@login_required
@require_safe
def nav_figures(request: HttpRequest) -> HttpResponse:
    """The badge and the workers, for pages that show nothing else of the gate."""
    response = render(request, "dashboard/parts/nav_figures.html")
    response.headers["Cache-Control"] = "no-store"
    return response


def _decide(request: HttpRequest, pk: int) -> HttpResponse:
    """Carry the decision out, or show why not with everything typed still there."""
    typed = {name: request.POST.get(name, "") for name in ("guidance", "iterations", "decision")}
    assert isinstance(request.user, User)  # noqa: S101 - login_required has seen to it
    try:
        decide(
            pk,
            decision=typed["decision"],
            digest=request.POST.get("digest", ""),
            user=request.user,
            guidance=typed["guidance"].replace("\r\n", "\n").replace("\0", ""),
            iterations=_rounds(request.POST.get("iterations")),
        )
    except Escalation.DoesNotExist as error:
        raise Http404 from error
    except BadDecision as error:
        wrong = {error.field: str(error)}
        return _page(request, _read(pk), status=400, typed=typed, wrong=wrong)
    except (NotPossibleNow, MovedOn) as error:
        return _page(request, _read(pk), status=409, typed=typed, refused=str(error))
    return redirect("gate-item", pk=pk)


def _rounds(text: str | None) -> int | None:
    """The number, or 0, which the gate refuses at its field; None without the field."""
    if text is None:
        return None
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0


def _inbox_page(older_than: int) -> Any:
    items = open_items().select_related("run__task__project").defer("packet", "run__state")
    if older_than:
        items = items.filter(pk__lt=older_than)
    return items.order_by("-pk")


def _read(pk: int) -> Escalation:
    found = Escalation.objects.select_related("run__task__project", "decided_by").filter(pk=pk)
    item = found.first()
    if item is None:
        raise Http404
    return item


def _page(
    request: HttpRequest, item: Escalation | None, *, status: int = 200, **typed: Any
) -> HttpResponse:
    older = request.GET.get("older", "")
    rows = list(_inbox_page(int(older) if older.isascii() and older.isdigit() else 0)[: PAGE + 1])
    inbox = rows[:PAGE]
    nav = read_nav(request.user)
    context: dict[str, Any] = {
        "section": "gate",
        "nav": nav,
        "inbox": inbox,
        "older": inbox[-1].pk if len(rows) > PAGE else None,
        "oldest": open_items().order_by("pk").values_list("created_at", flat=True).first(),
        "item": item,
        **typed,
    }
    if item is not None:
        context |= _item_context(item, inbox)
    return live_page(request, "gate", "parts/gate", context, status=status)


def _item_context(item: Escalation, inbox: list[Escalation]) -> dict[str, Any]:
    packet = item.packet if isinstance(item.packet, dict) else {}
    patch, code, summary = packet.get("patch"), packet.get("code"), packet.get("summary")
    others = [one.pk for one in inbox if one.pk != item.pk]
    asked = packet.get("asks", {})
    return {
        "packet": packet,
        "run": item.run,
        "task": item.run.task,
        "rail_attempts": rail_attempts([item.run])[item.run_id],
        "diff": diff_of(patch) if patch else None,
        "code": head(code, CODE_LINES) if code else None,
        "summary": head(summary, CODE_LINES) if summary else None,
        "open": item_status(item) is EscalationStatus.OPEN,
        "can": {one.name.lower(): one in item.allowed for one in Decision},
        "also_grants": [in_words(*of) for of in packet.get("also_grants", {}).items()],
        "raises": [in_words(*of) for of in packet.get("raises_graph", {}).items()],
        "raises_day": [
            in_words(axis, amount)
            for axis, amount in packet.get("raises_day", {}).items()
            if axis in CAPPED
        ],
        "decided_as": Decision(item.decision).label if item.decision else "",
        "asked": asked,
        "parameters": head(_spelled(asked), CODE_LINES) if asked.get("action") else None,
        # What a plan asks and what a graph or a day lacks is no finding on the work.
        "plain": any(map(packet.get, _NO_FINDING)) and not packet.get("reasons"),
        "words_for": _WORDS_FOR.get(item.cause, ""),
        "pauses": item.cause == StopReason.YIELD,
        "feedback": packet.get("feedback", ""),
        "next": next((pk for pk in others if pk < item.pk), others[0] if others else None),
        "usual_rounds": USUAL_ROUNDS,
        "most_rounds": MOST_ROUNDS,
    }


def _spelled(asked: dict[str, Any]) -> str:
    parameters = asked["action"]["parameters"]
    return json.dumps(parameters, indent=2, sort_keys=True, ensure_ascii=False)
