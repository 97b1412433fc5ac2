"""All settings, from the environment (`dashboard.environment.KNOWN` explains each)."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from dashboard import environment as env
from dashboard.local.sockets import socket_url
from dashboard.storage import artifact_storage

env.refuse_unknown()

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(env.text("LOOPWARDEN_DATA", str(BASE_DIR / ".loopwarden"))).absolute()


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ImproperlyConfigured(
            f"LOOPWARDEN_DATA: cannot write to {folder}: {error.strerror}."
            " Make it writable or name another folder."
        ) from error
    return folder


def _secret_key(folder: Path) -> str:
    given = env.text("LOOPWARDEN_SECRET_KEY")
    if given:
        return given
    file = folder / "secret-key"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(secrets.token_urlsafe(48))
    return file.read_text()


_writable(DATA_DIR)
SECRET_KEY = _secret_key(DATA_DIR)
DEBUG = env.flag("LOOPWARDEN_DEBUG")
PORT = env.whole("LOOPWARDEN_PORT", 8700, most=65535)
ALLOWED_HOSTS = env.words("LOOPWARDEN_HOSTS", "localhost,127.0.0.1,[::1]")
ORIGINS = env.words(
    "LOOPWARDEN_ORIGINS", f"http://127.0.0.1:{PORT},http://localhost:{PORT},http://[::1]:{PORT}"
)
CSRF_TRUSTED_ORIGINS = ORIGINS
CSRF_FAILURE_VIEW = "dashboard.views.errors.without_token"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "loops",
    "workers",
    "dashboard",
]
MIDDLEWARE = [
    "dashboard.middleware.request_id",
    "dashboard.middleware.content_policy",
    "django.middleware.security.SecurityMiddleware",
    "dashboard.middleware.StaticFiles",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "dashboard.middleware.DatabaseAway",
]
ROOT_URLCONF = "dashboard.urls"
ASGI_APPLICATION = "dashboard.asgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "dashboard.context.nav",
            ]
        },
    }
]

SQLITE: dict[str, Any] = {
    "timeout": 20,
    # Without IMMEDIATE a read-then-write transaction fails at once under any concurrency.
    "transaction_mode": "IMMEDIATE",
    "init_command": "PRAGMA synchronous=NORMAL;",
}
DATABASES: dict[str, Any] = {
    "default": dj_database_url.config(default=f"sqlite:///{DATA_DIR / 'loopwarden.sqlite3'}")
}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"]["OPTIONS"] = SQLITE
    DATABASES["default"]["TEST"] = {"NAME": str(DATA_DIR / "test.sqlite3")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = env.text("REDIS_URL") or socket_url(DATA_DIR)

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "tasks"
LOGOUT_REDIRECT_URL = "login"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    # Without this Django keeps the traceback of a broken page to itself.
    "loggers": {"django": {"handlers": ["console"], "level": "WARNING", "propagate": False}},
}

LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"
_ARTIFACTS, MEDIA_ROOT = artifact_storage(env.text("LOOPWARDEN_ARTIFACTS"), DATA_DIR / "artifacts")
STORAGES: dict[str, Any] = {
    "default": _ARTIFACTS,
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
# Files come straight from the installed package: nothing to collect before a start.
WHITENOISE_USE_FINDERS = True

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["dashboard.api.bodies.StrictJSONParser"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "dashboard.api.bodies.AlwaysJSON",
    "DEFAULT_AUTHENTICATION_CLASSES": ["dashboard.api.auth.BearerAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["dashboard.api.auth.HasToken"],
    "EXCEPTION_HANDLER": "dashboard.api.problems.handle",
    "UNAUTHENTICATED_USER": None,
    "UNAUTHENTICATED_TOKEN": None,
}

LOOPWARDEN_REPO_ROOTS = [
    Path(root).absolute()
    for root in env.words("LOOPWARDEN_REPO_ROOTS", str(Path.home()), separator=":")
]
# Whoever has a shell here may submit any repository, unless the setting names folders for all.
LOOPWARDEN_SHELL_ROOTS = LOOPWARDEN_REPO_ROOTS if env.text("LOOPWARDEN_REPO_ROOTS") else [Path("/")]
LOOPWARDEN_CARRY_SOURCES = env.flag("LOOPWARDEN_CARRY_SOURCES")
# What no command in a sandbox may see.
LOOPWARDEN_HIDDEN = [DATA_DIR, MEDIA_ROOT]
LOOPWARDEN_CONTRACTS = env.words("LOOPWARDEN_CONTRACTS")
LOOPWARDEN_TOOLS = env.words("LOOPWARDEN_TOOLS")
LOOPWARDEN_HTTP_HOSTS = env.words("LOOPWARDEN_HTTP_HOSTS")
LOOPWARDEN_LEASE_SECONDS = env.whole("LOOPWARDEN_LEASE_SECONDS", 60)
LOOPWARDEN_COMMAND_SECONDS = env.whole("LOOPWARDEN_COMMAND_SECONDS", 600)
LOOPWARDEN_ATTEMPT_SECONDS = env.whole("LOOPWARDEN_ATTEMPT_SECONDS", 3600)
LOOPWARDEN_GRACE_SECONDS = env.whole("LOOPWARDEN_GRACE_SECONDS", 8)
LOOPWARDEN_RETRY_SECONDS = env.whole("LOOPWARDEN_RETRY_SECONDS", 300)
LOOPWARDEN_BREAKER_STRIKES = env.whole("LOOPWARDEN_BREAKER_STRIKES", 3)
LOOPWARDEN_POOL = env.whole("LOOPWARDEN_POOL", 32)
LOOPWARDEN_SLOTS = env.whole("LOOPWARDEN_SLOTS", 64)
LOOPWARDEN_SANDBOX = env.choice("LOOPWARDEN_SANDBOX", "auto", "bubblewrap", "none")
