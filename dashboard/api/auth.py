"""Who calls: a bearer token and nothing else, never a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib.auth.models import User
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from dashboard import tokens
from loops.models import ApiToken

if TYPE_CHECKING:
    from rest_framework.views import APIView

MESSAGE = "The token is unknown, expired or revoked. Send `Authorization: Bearer lw_...`."


class BearerAuthentication(BaseAuthentication):
    """`Authorization: Bearer lw_...`"""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """The token's user and the token; None when no bearer token was sent."""
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = tokens.find(text.strip())
        if token is None:
            raise AuthenticationFailed(MESSAGE)
        return token.user, token

    def authenticate_header(self, _request: Request) -> str:
        """Makes a refusal a 401 rather than a 403."""
        return 'Bearer realm="loopwarden"'


class HasToken(BasePermission):
    """Everything here needs a token."""

    def has_permission(self, request: Request, _view: APIView) -> bool:
        """Whether a token came with the request."""
        return isinstance(request.auth, ApiToken)
