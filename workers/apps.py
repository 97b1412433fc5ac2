"""The `workers` floor as a Django app."""

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from loops.core.errors import ContractError


class WorkersConfig(AppConfig):
    """Commands and static parts of this floor."""

    name = "workers"

    def ready(self) -> None:
        """Refuse to start with a tool that cannot be loaded."""
        from workers.tools.own import load_own  # noqa: PLC0415 - it needs the models

        try:
            load_own(tuple(settings.LOOPWARDEN_TOOLS))
        except ContractError as error:
            raise ImproperlyConfigured(f"LOOPWARDEN_TOOLS: {error}") from error
