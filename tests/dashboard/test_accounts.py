"""First user, login links, passwords and tokens."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from dashboard import tokens
from dashboard.accounts import ensure_first_user, make_login_link
from loops.models import ApiToken, LoginLink, Project

pytestmark = pytest.mark.django_db


def path_of(link: str) -> str:
    """The link without its origin."""
    return link.removeprefix("http://testserver")


def test_the_first_user_is_made_once_and_has_no_password() -> None:
    first = ensure_first_user()
    assert (first.username, first.is_superuser) == ("admin", True)
    assert not first.has_usable_password()
    assert ensure_first_user() == first
    assert User.objects.count() == 1


def test_with_users_there_no_other_is_made() -> None:
    alice = User.objects.create_superuser("alice")
    assert ensure_first_user() == alice


def test_looking_at_a_link_does_not_spend_it_and_using_it_twice_fails(client: Client) -> None:
    link = path_of(make_login_link(ensure_first_user(), "http://testserver/"))
    for _ in range(3):
        assert b"Log in" in client.get(link).content
    assert client.post(link)["Location"] == "/tasks/"
    assert client.get("/tasks/").status_code == 200
    stranger = Client()
    response = stranger.post(link)
    assert response.status_code == 410
    assert "used already" in response.content.decode()
    assert stranger.get("/tasks/").status_code == 302


def test_a_link_lives_15_minutes_and_only_its_hash_is_stored(client: Client) -> None:
    link = path_of(make_login_link(ensure_first_user(), "http://testserver"))
    stored = LoginLink.objects.get()
    assert stored.digest not in link
    stored.expires_at = timezone.now() - timedelta(seconds=1)
    stored.save()
    assert client.get(link).status_code == 410
    assert client.post(link).status_code == 410


def test_password_login_and_logout(client: Client) -> None:
    User.objects.create_user("carol", password="a good long one")
    assert client.post("/login/", {"username": "carol", "password": "wrong"}).status_code == 200
    response = client.post(
        "/login/?next=/gate/", {"username": "carol", "password": "a good long one"}
    )
    assert response["Location"] == "/gate/"
    assert client.get("/logout/").status_code == 405
    client.post("/logout/")
    assert client.get("/tasks/").status_code == 302


def test_guessing_is_slowed_for_that_name_and_address_only(client: Client) -> None:
    User.objects.create_user("carol", password="a good long one")
    User.objects.create_user("dave", password="another long one")
    codes = [
        client.post("/login/", {"username": "carol", "password": f"guess {no}"}).status_code
        for no in range(12)
    ]
    assert codes == [200] * 10 + [429] * 2
    right = {"username": "carol", "password": "a good long one"}
    assert client.post("/login/", right).status_code == 429
    assert client.post("/login/", right, REMOTE_ADDR="10.0.0.9").status_code == 302
    other = {"username": "dave", "password": "another long one"}
    assert Client().post("/login/", other).status_code == 302


def test_a_password_can_be_set_and_ends_other_sessions(client: Client) -> None:
    user = ensure_first_user()
    other = Client()
    client.force_login(user)
    other.force_login(user)
    short = {"new_password1": "short", "new_password2": "short"}
    assert "too short" in client.post("/account/", short).content.decode()
    good = {"new_password1": "a good long one", "new_password2": "a good long one"}
    assert client.post("/account/", good).status_code == 302
    assert client.get("/tasks/").status_code == 200
    assert other.get("/tasks/").status_code == 302


def test_a_token_is_shown_once_and_stored_as_a_hash(alice: User, project: Project) -> None:
    token, text = tokens.create("ci", user=alice, project=project)
    assert text.startswith(f"lw_{token.prefix}_")
    assert text not in str(ApiToken.objects.values().get())
    assert tokens.find(text) == token


@pytest.mark.parametrize("spoil", ["", "lw_", "x", "é" * 60])
def test_what_is_no_token_finds_nothing(alice: User, project: Project, spoil: str) -> None:
    _, text = tokens.create("ci", user=alice, project=project)
    assert tokens.find(spoil) is None
    assert tokens.find(text[:-1] + ("a" if text[-1] != "a" else "b")) is None
    assert tokens.find(text.replace("lw_", "xx_")) is None


def test_a_token_dies_by_time_by_hand_and_with_its_user(alice: User, project: Project) -> None:
    token, text = tokens.create("ci", user=alice, project=project, days=1)
    assert tokens.find(text)
    ApiToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert tokens.find(text) is None
    ApiToken.objects.update(expires_at=None)
    alice.is_active = False
    alice.save()
    assert tokens.find(text) is None
    alice.is_active = True
    alice.save()
    assert tokens.revoke(token.prefix) == 1
    assert tokens.find(text) is None


def test_the_last_use_is_written_at_most_once_a_minute(alice: User, project: Project) -> None:
    token, text = tokens.create("ci", user=alice, project=project)
    tokens.find(text)
    first = ApiToken.objects.get().last_used_at
    tokens.find(text)
    assert ApiToken.objects.get().last_used_at == first
    ApiToken.objects.update(last_used_at=timezone.now() - timedelta(seconds=61))
    tokens.find(text)
    assert ApiToken.objects.get(pk=token.pk).last_used_at > first  # type: ignore[operator]


def test_the_commands_add_people_and_tokens() -> None:
    out = StringIO()
    call_command("user", "add", "erin", "--link", stdout=out)
    assert "/login/link/" in out.getvalue()
    with pytest.raises(CommandError, match="already"):
        call_command("user", "add", "erin")
    with pytest.raises(CommandError, match="no user"):
        call_command("user", "link", "nobody")
    out = StringIO()
    call_command("token", "create", "ci", "--user", "erin", "--days", "3", stdout=out, stderr=out)
    text = out.getvalue().split()[0]
    token = tokens.find(text)
    assert token is not None
    out = StringIO()
    call_command("token", "list", stdout=out)
    assert text not in out.getvalue()
    assert f"lw_{token.prefix}_..." in out.getvalue()
    call_command("token", "revoke", f"lw_{token.prefix}", stdout=out)
    assert tokens.find(text) is None
    with pytest.raises(CommandError, match="no active token"):
        call_command("token", "revoke", token.prefix)
