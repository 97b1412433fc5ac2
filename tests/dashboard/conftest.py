"""People, a project, agents, and the ways in."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard import tokens
from loops.models import AgentProfile, Project


@pytest.fixture
def project(db: None) -> Project:
    """The project that everything here belongs to."""
    return Project.objects.create(slug="payments", name="Payments")


@pytest.fixture
def alice(db: None) -> User:
    """Submits tasks."""
    return User.objects.create_user("alice")


@pytest.fixture
def bob(db: None) -> User:
    """Decides at the gate."""
    return User.objects.create_user("bob")


@pytest.fixture
def profiles(db: None) -> list[AgentProfile]:
    """A priced agent and one without a price."""
    return [
        AgentProfile.objects.create(
            name="scripted-coder",
            provider="scripted",
            config={"steps": []},
            input_usd_per_mtok=0,
            output_usd_per_mtok=0,
        ),
        AgentProfile.objects.create(
            name="local-model",
            provider="command",
            config={"argv": ["model"], "usage_json": True, "max_tokens": 1000},
        ),
    ]


@pytest.fixture
def pages(alice: User) -> Client:
    """Alice's browser, without JavaScript."""
    client = Client()
    client.force_login(alice)
    return client


@pytest.fixture
def bearer(alice: User, project: Project) -> dict[str, str]:
    """The header of Alice's token."""
    _, text = tokens.create("ci", user=alice, project=project)
    return {"HTTP_AUTHORIZATION": f"Bearer {text}"}
