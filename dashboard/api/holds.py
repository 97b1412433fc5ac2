"""Pause, resume and the kill switch over HTTP."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from rest_framework.request import Request as HttpRequest
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard.api.bodies import HoldBody, read
from dashboard.api.problems import Refusal
from dashboard.api.shapes import hold_shape
from dashboard.api.tasks import key_of, run_or_404, token_of
from dashboard.holding import allow
from loops.models import EVERYTHING, SWITCH, Hold
from loops.store.holds import AlreadyEnded, Request, RequestReused, Target
from workers import stopping


class Holds(APIView):
    """What is paused or stopped."""

    def get(self, request: HttpRequest) -> Response:
        """Of the token's project, and wider."""
        project = token_of(request).project_id
        mine = Q(project=project) | Q(run__task__project=project)
        found = Hold.objects.filter(mine | Q(target__in=[EVERYTHING, SWITCH])).order_by("target")
        return Response({"data": [hold_shape(one) for one in found]})


class HoldTarget(APIView):
    """Hold or lift one kind of target: `scope` is run, project, all or switch."""

    scope = ""
    lifts = False

    def post(self, request: HttpRequest, pk: int = 0) -> Response:
        """200 with what is true now; with an Idempotency-Key, once however often it is sent."""
        body = read(HoldBody, dict(request.data))
        target = self._target(request, pk)
        token = token_of(request)
        allow(token.user, target)
        key = key_of(request)
        own = {"request_id": f"token:{token.pk}:{key}"} if key else {}
        asked = Request(actor=token.user.get_username(), why=body.why, **own)
        try:
            changed = self._carry_out(target, asked, body.seen)
        except RequestReused as error:
            raise Refusal(422, "idempotency_key_reused", str(error)) from error
        except AlreadyEnded as error:
            raise Refusal(409, "already_ended", str(error)) from error
        standing = Hold.objects.filter(pk=target.key).first()
        held = None if standing is None else hold_shape(standing)
        return Response({"target": target.key, "changed": changed, "held": held})

    def _carry_out(self, target: Target, asked: Request, seen: str) -> bool:
        if self.lifts:
            return stopping.resume(target, asked, seen=seen)
        return stopping.pause(target, asked)

    def _target(self, request: HttpRequest, pk: int) -> Target:
        targets: dict[str, Any] = {
            "run": lambda: Target(run=run_or_404(request, pk)),
            "project": lambda: Target(project=token_of(request).project),
            "all": Target,
            "switch": lambda: Target(switch=True),
        }
        found: Target = targets[self.scope]()
        return found
