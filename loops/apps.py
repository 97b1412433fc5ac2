"""The Django app that stores tasks, runs, gates and events."""

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from loops.core.errors import ContractError
from loops.patterns import contract


class LoopsConfig(AppConfig):
    """Models and their only writers."""

    name = "loops"

    def ready(self) -> None:
        """Make the operator's own loop contracts known."""
        for entry in settings.LOOPWARDEN_CONTRACTS:
            name, _, target = entry.partition("=")
            try:
                contract.register(name.strip(), target.strip())
            except ContractError as error:
                raise ImproperlyConfigured(f"LOOPWARDEN_CONTRACTS: {error}") from error
