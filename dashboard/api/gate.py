"""The gate over HTTP."""

from __future__ import annotations

from django.db.models import QuerySet
from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard.api.bodies import DecisionBody, read
from dashboard.api.paging import answer, bad_parameter, page
from dashboard.api.problems import Refusal, pointer
from dashboard.api.shapes import decision_shape, escalation_shape
from dashboard.api.tasks import token_of
from dashboard.queues import items_now
from loops.gates import BadDecision, NotPossibleNow, decide
from loops.models import Escalation, EscalationStatus
from loops.store.runs import MovedOn


def items_of(request: Request) -> QuerySet[Escalation]:
    """The items that the token may see: its own project's."""
    mine = Escalation.objects.filter(run__task__project=token_of(request).project_id)
    return mine.select_related("run__task", "decided_by")


def item_or_404(request: Request, pk: int) -> Escalation:
    """One of them."""
    item = items_of(request).filter(pk=pk).first()
    if item is None:
        raise Http404
    return item


class Escalations(APIView):
    """The queue."""

    def get(self, request: Request) -> Response:
        """Newest first; `status` is `open` unless another is asked for."""
        status = request.query_params.get("status", EscalationStatus.OPEN.value)
        if status not in EscalationStatus.values:
            raise bad_parameter("status", f"there are: {', '.join(EscalationStatus.values)}")
        found, cursor = page(request, items_of(request).filter(items_now(status)))
        return answer(request, [escalation_shape(item) for item in found], cursor)


class OneEscalation(APIView):
    """One item with its packet and digest."""

    def get(self, request: Request, pk: int) -> Response:
        """Everything that a decision is bound to."""
        return Response(escalation_shape(item_or_404(request, pk)))


class EscalationDecision(APIView):
    """The decision on one item: single use, the first one wins."""

    def get(self, request: Request, pk: int) -> Response:
        """What was decided; 404 while nothing is."""
        shape = decision_shape(item_or_404(request, pk))
        if shape is None:
            raise Refusal(404, "not_decided", "Nothing is decided yet.")
        return Response(shape)

    def post(self, request: Request, pk: int) -> Response:
        """Decide on exactly what `digest` names."""
        item = item_or_404(request, pk)
        body = read(DecisionBody, request.data)
        try:
            decided = decide(
                item.pk,
                decision=body.decision,
                digest=body.digest,
                user=token_of(request).user,
                guidance=body.guidance,
                iterations=body.iterations,
            )
        except BadDecision as error:
            one = {"pointer": pointer(error.field), "code": "invalid", "detail": str(error)}
            raise Refusal(
                400, "invalid", "The decision cannot be taken as it is.", [one]
            ) from error
        except (NotPossibleNow, MovedOn) as error:
            raise Refusal(409, "not_possible_now", str(error)) from error
        return Response(escalation_shape(item_or_404(request, decided.pk)))
