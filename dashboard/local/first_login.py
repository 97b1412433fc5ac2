"""The link that signs the owner in after the first start."""

from __future__ import annotations

from dashboard.accounts import ensure_first_user, make_login_link


def login_link(base_url: str) -> str:
    """A link that works once, for the first user, who is made when there is none."""
    return make_login_link(ensure_first_user(), base_url)
