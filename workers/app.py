"""The Celery app. A message is only a wake-up: the database decides what is true."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")

ITERATE = "loopwarden.iterate"
"""The one task: run one attempt of one run. Its arguments are two numbers."""

app = Celery("loopwarden", set_as_current=True)
app.config_from_object("workers.celery_settings")
app.autodiscover_tasks(["workers"])
