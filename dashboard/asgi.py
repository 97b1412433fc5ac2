"""The web process: pages and API over HTTP, live hints over a socket, a sweep now and then."""

from __future__ import annotations

import os
from typing import Any, cast

from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import OriginValidator
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
http = get_asgi_application()

# Models exist only now.
from channels.auth import AuthMiddlewareStack  # noqa: E402 - see above
from django.conf import settings  # noqa: E402 - see above
from django.urls import path  # noqa: E402 - see above

from dashboard.consumers import LiveConsumer  # noqa: E402 - see above
from dashboard.sweeping import lifespan  # noqa: E402 - see above

live = path("ws/live/", cast("Any", LiveConsumer.as_asgi()))
socket = AuthMiddlewareStack(URLRouter([cast("Any", live)]))
application = ProtocolTypeRouter(
    {
        "http": http,
        "websocket": OriginValidator(socket, settings.ORIGINS),
        "lifespan": cast("Any", lifespan),
    }
)
