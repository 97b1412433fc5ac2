"""The `dashboard` floor as a Django app."""

from django.apps import AppConfig


class DashboardConfig(AppConfig):
    """Commands and static parts of this floor."""

    name = "dashboard"
