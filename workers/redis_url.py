"""One `REDIS_URL` for every client: kombu spells unix sockets in a way of its own."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import redis

UNIX_SCHEMES = ("unix", "valkey+unix")
KEY_PREFIX = "loopwarden:"
"""Before each key of the broker. Not among Celery's settings, which read the address."""


class UnsafeRedis(Exception):
    """This Redis would lose or refuse what it is given, or it does not answer."""


def celery_url(url: str) -> str:
    """`unix://PATH?db=N` as kombu wants it, `redis+socket://PATH?virtual_host=N`; others as given.

    The path stays percent-encoded: both sides decode it.
    """
    parts = urlsplit(url)
    if parts.scheme not in UNIX_SCHEMES:
        return url
    database = parse_qs(parts.query).get("db", ["0"])[0]
    return f"redis+socket://{parts.netloc}{parts.path}?virtual_host={database}"


def check_policy(url: str) -> None:
    """Raise `UnsafeRedis` unless the server answers and never evicts keys.

    An evicting server drops queues and budget counters while every write is still answered OK.
    """
    client = redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=2)
    try:
        # Hosted servers forbid CONFIG GET; INFO says the same.
        policy = client.info("memory")["maxmemory_policy"]
    except redis.RedisError as error:
        raise UnsafeRedis(f"REDIS_URL: no answer from {_without_password(url)}: {error}") from error
    finally:
        client.close()
    if policy != "noeviction":
        raise UnsafeRedis(
            f"REDIS_URL: {_without_password(url)} has maxmemory-policy {policy} and would drop"
            " queued work. Set it to noeviction (CONFIG SET maxmemory-policy noeviction)."
        )


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
