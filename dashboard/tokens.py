"""API tokens: shown once, stored as a hash, recognised by their prefix and checksum."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import string
import zlib
from datetime import timedelta
from typing import TYPE_CHECKING

from django.db.models import Q
from django.db.models.functions import Now

from loops import clock
from loops.models import ApiToken, Project

if TYPE_CHECKING:
    from django.contrib.auth.models import User

_ALPHABET = string.ascii_letters + string.digits
PREFIX_LENGTH, SECRET_LENGTH, CHECK_LENGTH = 8, 43, 6
USE_WRITTEN_EVERY = timedelta(minutes=1)


def create(
    name: str, *, user: User, project: Project, days: int | None = None
) -> tuple[ApiToken, str]:
    """A new token and its text, which nobody can learn again."""
    prefix = _random(PREFIX_LENGTH)
    body = f"lw_{prefix}_{_random(SECRET_LENGTH)}"
    text = body + _checksum(body)
    token = ApiToken.objects.create(
        name=name,
        prefix=prefix,
        digest=_digest(text),
        user=user,
        project=project,
        expires_at=Now() + timedelta(days=days) if days else None,
    )
    return token, text


def find(text: str) -> ApiToken | None:
    """The token with this text, if it may be used now. Notes the use at most once a minute."""
    if not well_formed(text):
        return None
    digest = _digest(text)
    token = (
        ApiToken.objects.select_related("user", "project")
        .filter(digest=digest, revoked_at__isnull=True, user__is_active=True)
        .filter(Q(expires_at__isnull=True) | Q(expires_at__gt=Now()))
        .first()
    )
    if token is None or not hmac.compare_digest(token.digest, digest):
        return None
    if token.last_used_at is None or token.last_used_at < clock.now() - USE_WRITTEN_EVERY:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=Now())
    return token


def revoke(prefix: str) -> int:
    """Make the token useless from now on. Returns how many were revoked."""
    return ApiToken.objects.filter(prefix=prefix, revoked_at__isnull=True).update(revoked_at=Now())


def well_formed(text: str) -> bool:
    """Whether the checksum fits: a slip of the hand needs no look into the database."""
    body, check = text[:-CHECK_LENGTH], text[-CHECK_LENGTH:]
    return text.isascii() and body.startswith("lw_") and hmac.compare_digest(_checksum(body), check)


def _checksum(body: str) -> str:
    number, digits = zlib.crc32(body.encode()), []
    for _ in range(CHECK_LENGTH):
        number, rest = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[rest])
    return "".join(digits)


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
