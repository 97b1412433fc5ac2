"""From a stored agent profile to the provider that is called."""

from __future__ import annotations

from loops.models import AgentProfile
from workers import agents
from workers.agents.base import Prices, Provider


def provider_of(profile: AgentProfile) -> Provider:
    """The provider with the profile's settings, and its prices where both are known."""
    incoming, outgoing = profile.input_usd_per_mtok, profile.output_usd_per_mtok
    prices = None
    if incoming is not None and outgoing is not None:
        prices = Prices(input_usd_per_mtok=incoming, output_usd_per_mtok=outgoing)
    return agents.get(profile.provider).open(profile.config, prices)
