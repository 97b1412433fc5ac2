from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from kombu.connection import Connection

from dashboard.local.ports import free_port
from dashboard.local.valkey import ValkeyServer
from workers.redis_url import UnsafeRedis, celery_url, check_policy


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path / "a b?c#d%20é") as one:
        yield one


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("unix:///run/v.sock?db=2", "redis+socket:///run/v.sock?virtual_host=2"),
        ("unix:///run/v.sock", "redis+socket:///run/v.sock?virtual_host=0"),
        ("unix://u:p@/run/v.sock?db=1", "redis+socket://u:p@/run/v.sock?virtual_host=1"),
        ("valkey+unix:///run/v.sock?db=2", "redis+socket:///run/v.sock?virtual_host=2"),
        ("redis://:secret@host:6379/1", "redis://:secret@host:6379/1"),
        ("rediss://host/0?ssl_cert_reqs=required", "rediss://host/0?ssl_cert_reqs=required"),
    ],
)
def test_kombu_gets_its_own_spelling(given: str, expected: str) -> None:
    assert celery_url(given) == expected


def test_kombu_reaches_the_database_that_is_named(server: ValkeyServer) -> None:
    url = server.url.replace("db=0", "db=3")
    with Connection(celery_url(url)) as connection:  # type: ignore[no-untyped-call]
        queue = connection.SimpleQueue("wake-ups")
        queue.put({"run": 1})
        client = redis.Redis.from_url(url)
        try:
            assert client.llen("wake-ups") == 1
        finally:
            client.close()
        assert queue.get(timeout=5).payload == {"run": 1}
        queue.close()


def test_a_server_that_never_evicts_passes(server: ValkeyServer) -> None:
    check_policy(server.url)


def test_a_server_that_evicts_is_refused(server: ValkeyServer) -> None:
    client = redis.Redis.from_url(server.url)
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.close()
    with pytest.raises(UnsafeRedis, match=r"allkeys-lru.*Set it to noeviction"):
        check_policy(server.url)


def test_the_error_names_the_address_without_its_password() -> None:
    port = free_port()
    with pytest.raises(UnsafeRedis) as caught:
        check_policy(f"redis://:secret@127.0.0.1:{port}/0")
    assert f"redis://127.0.0.1:{port}/0" in str(caught.value)
    assert "secret" not in str(caught.value)
