"""The `workers` floor as a Django app."""

from django.apps import AppConfig


class WorkersConfig(AppConfig):
    """Commands and static parts of this floor."""

    name = "workers"
