"""Who may come in: API tokens, one-time login links, and remembered requests."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from loops.models.graph import Graph
from loops.models.task import Project, Task


class ApiToken(models.Model):
    """A bearer token. Only its SHA-256 is stored; `prefix` is what people see afterwards."""

    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12)
    digest = models.CharField(max_length=64, unique=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    project = models.ForeignKey(Project, on_delete=models.CASCADE)
    created_at = models.DateTimeField(auto_now_add=True)
    last_used_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)


class LoginLink(models.Model):
    """A link that logs a user in once. Only its SHA-256 is stored."""

    digest = models.CharField(max_length=64, unique=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)


class IdempotencyKey(models.Model):
    """A request that was carried out: the same key and body get the same answer."""

    owner = models.CharField(max_length=80)
    """`token:<id>` or `user:<id>`."""
    key = models.CharField(max_length=255)
    request_digest = models.CharField(max_length=64)
    task = models.ForeignKey(Task, null=True, on_delete=models.CASCADE)
    graph = models.ForeignKey(Graph, null=True, on_delete=models.CASCADE)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["owner", "key"], name="idempotency_key_unique"),
            models.CheckConstraint(
                condition=Q(task__isnull=False, graph__isnull=True)
                | Q(task__isnull=True, graph__isnull=False),
                name="idempotency_key_of_one_thing",
            ),
        ]
