"""The list of tasks."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard.queues import CHIPS, count_up_to, current_runs, rail_attempts, search
from dashboard.views.fragments import live_page
from loops.store import holds

PAGE = 50


@login_required
@require_safe
def tasks(request: HttpRequest) -> HttpResponse:
    """Newest first. All of the view's state is in its address."""
    chosen = request.GET.get("show", "all")
    chosen = chosen if chosen in CHIPS else "all"
    words = request.GET.get("q", "")
    found = current_runs().filter(search(words))
    matching = found.filter(CHIPS[chosen][1])
    older_than, up_to = _number(request, "older"), _number(request, "upto")

    rows = matching.select_related("task").defer("state", "feedback", "result")
    if older_than:
        rows = rows.filter(pk__lt=older_than)
    elif up_to:
        rows = rows.filter(pk__lte=up_to)
    page = list(rows.order_by("-pk")[: PAGE + 1])
    more, page = page[PAGE:], page[:PAGE]
    attempts, held = rail_attempts(page), holds.of_runs(page)
    newest = up_to or (page[0].pk if page and not older_than else 0)
    context: dict[str, Any] = {
        "section": "tasks",
        "chosen": chosen,
        "q": words,
        "chips": [
            {"name": name, "title": title, "count": count_up_to(found.filter(only))}
            for name, (title, only) in CHIPS.items()
        ],
        "rows": [
            {
                "run": run,
                "task": run.task,
                "attempts": attempts[run.pk],
                "paused": bool(held.get(run.pk)),
            }
            for run in page
        ],
        "older": page[-1].pk if more else None,
        "paged": older_than,
        "upto": newest,
        "fresh": matching.filter(pk__gt=up_to).count() if up_to else 0,
        "origin": f"{request.scheme}://{request.get_host()}",
    }
    return live_page(request, "tasks", "parts/task_list", context)


def _number(request: HttpRequest, name: str) -> int:
    value = request.GET.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else 0
