"""What a person grants a graph: more of what its tasks share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import Sum

from loops.core.errors import ContractError, LimitReached, LoopwardenError
from loops.core.limits import Limits
from loops.figures import in_words
from loops.models import Graph, GraphGrant, GraphStatus
from loops.models.budget import COUNTED
from loops.store.graph_events import record
from loops.store.submit import Problem

if TYPE_CHECKING:
    from django.contrib.auth.models import User


class NothingStarts(LoopwardenError):
    """The graph starts nothing any more, so more budget would be of no use to it."""


def problems_of(graph: Graph, caps: Mapping[str, int]) -> Iterator[Problem]:
    """Everything that keeps these caps from being the graph's new ones."""
    if not caps:
        message = f"name at least one of: {', '.join(_capped(graph)) or 'none, it has no limits'}"
        yield Problem(field="limits", code="missing", message=message)
    for axis, cap in caps.items():
        old = getattr(graph, f"limit_{axis}")
        if old is None:
            message = "has no limit here: there is nothing to raise"
        elif cap < old:
            message = f"is {old} already: a grant only raises it"
        else:
            try:
                Limits(**{"iterations": 1, axis: cap})
                continue
            except ContractError as error:
                message = str(error).removeprefix(f"limits.{axis} ")
        yield Problem(field=f"limits.{axis}", code="out_of_range", message=message)


def raise_limits(graph_id: int, caps: Mapping[str, int], *, user: User) -> dict[str, int]:
    """Raise the graph's caps to these, and note who gave how much more. Returns what was added.

    A cap that is as high already stays, so that the same grant, sent twice, is given once. Raises
    `NothingStarts`.
    """
    with transaction.atomic():
        graph = Graph.objects.select_for_update().get(pk=graph_id)
        if graph.status != GraphStatus.RUNNING or graph.cancel_requested or graph.is_late:
            raise NothingStarts
        old = {axis: getattr(graph, f"limit_{axis}") for axis in caps}
        added = {axis: cap - old[axis] for axis, cap in caps.items() if cap > old[axis]}
        if added:
            GraphGrant.objects.create(graph=graph, granted_by=user, **added)
            raised = {f"limit_{axis}": caps[axis] for axis in added}
            Graph.objects.filter(pk=graph.pk).update(**raised)
            words = ", ".join(in_words(axis, caps[axis]) for axis in added)
            text = f"{user.get_username()} raised what its tasks may spend to {words}"
            record(graph.pk, "granted", text, actor=user.get_username())
    return added


def first_limits(graph: Graph) -> dict[str, int | None]:
    """What it was submitted with, before any grant."""
    sums = graph.grants.aggregate(**{axis: Sum(axis, default=0) for axis in COUNTED})
    caps = {axis: getattr(graph, f"limit_{axis}") for axis in COUNTED}
    found = {axis: None if cap is None else cap - sums[axis] for axis, cap in caps.items()}
    if graph.deadline_at is not None:
        found["deadline_seconds"] = round((graph.deadline_at - graph.created_at).total_seconds())
    return found


def next_limit(graph: Graph, axis: str, refusal: LimitReached) -> int:
    """The cap to go on with after this refusal: as much again as at first, at least the call."""
    first = first_limits(graph)[axis] or 0
    return max(refusal.cap + first, refusal.used + refusal.reserved + refusal.asked)


def _capped(graph: Graph) -> list[str]:
    return [axis for axis in COUNTED if getattr(graph, f"limit_{axis}") is not None]
