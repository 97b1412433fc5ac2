"""Who people are: the first user, one-time login links, and the brake on guessing passwords."""

from __future__ import annotations

import hashlib
import logging
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING

import redis
from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.urls import reverse

from loops import feed
from loops.models import LoginLink

if TYPE_CHECKING:
    from django.contrib.auth.models import User

LINK_LIFE = timedelta(minutes=15)
GUESSES, GUESS_SECONDS = 10, 600

log = logging.getLogger(__name__)


def ensure_first_user() -> User:
    """The first user, made when there is none: `admin`, who comes in by a link only."""
    users = get_user_model().objects
    found = users.order_by("-is_active", "-is_superuser", "pk").first()
    return found or users.create_superuser("admin")


def make_login_link(user: User, base_url: str) -> str:
    """An address that logs the user in once, within 15 minutes. Only its hash is stored."""
    token = secrets.token_urlsafe(24)
    LoginLink.objects.create(digest=_digest(token), user=user, expires_at=Now() + LINK_LIFE)
    return base_url.rstrip("/") + reverse("login-link", args=[token])


def link_is_good(token: str) -> bool:
    """Whether the link would log somebody in. Looking does not spend it."""
    return _good_links(token).exists()


def spend_link(token: str) -> User | None:
    """The link's user, once. None when it is used, expired or unknown."""
    if not _good_links(token).update(used_at=Now()):
        return None
    return LoginLink.objects.select_related("user").get(digest=_digest(token)).user


def _good_links(token: str) -> QuerySet[LoginLink]:
    return LoginLink.objects.filter(
        digest=_digest(token),
        used_at__isnull=True,
        expires_at__gt=Now(),
        user__is_active=True,
    )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Guesses:
    """Counts the tries of one name from one address, so that nobody can lock others out.

    Every try is counted before the password is looked at, so that parallel ones count too.
    """

    def __init__(self, name: str, address: str) -> None:
        pair = hashlib.sha256(f"{name.casefold()}\0{address}".encode()).hexdigest()
        self._key = f"loopwarden:guesses:{pair}"

    def admit(self) -> bool:
        """Count one more try and say whether it may be made."""
        try:
            with feed.client().pipeline() as pipe:
                pipe.incr(self._key)
                pipe.expire(self._key, GUESS_SECONDS, nx=True)
                tries, _ = pipe.execute()
        except redis.RedisError as error:
            # Without Redis people must still get in to see what is wrong.
            log.warning("login tries are not counted: %s", error)
            return True
        return int(tries) <= GUESSES

    def forget(self) -> None:
        """The right password was given."""
        try:
            feed.client().delete(self._key)
        except redis.RedisError as error:
            log.warning("login tries are not forgotten: %s", error)
