"""Which project a task goes to when nobody says."""

from __future__ import annotations

from loops.models import Project


def default_project() -> Project:
    """The oldest project, made when there is none."""
    found = Project.objects.order_by("pk").first()
    return found or Project.objects.get_or_create(slug="default", defaults={"name": "Default"})[0]
