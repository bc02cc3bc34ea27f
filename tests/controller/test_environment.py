"""The environment, read strictly."""

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from controller import environment as env

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8765", "127.0.0.1", 8765),
        ("[::1]:80", "::1", 80),
        ("head:0", "head", 0),
        ("0.0.0.0:1", "0.0.0.0", 1),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    found = env.address("RELUME_LISTEN", text)
    assert (found.host, found.port, str(found)) == (host, port, text)


@pytest.mark.parametrize("text", ["", "8765", ":8765", "host", "host:", "host:x", "host:70000", "::1:80", "h:²"])
def test_bad_addresses_name_who_gave_them(text: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="RELUME_LISTEN"):
        env.address("RELUME_LISTEN", text)


def test_sqlite_is_strict_about_its_file_and_never_waits_for_a_read_to_become_a_write() -> None:
    found = env.database("sqlite:////srv/relume.sqlite3")
    assert found["NAME"] == Path("/srv/relume.sqlite3")
    assert found["OPTIONS"]["transaction_mode"] == "IMMEDIATE" and "WAL" in found["OPTIONS"]["init_command"]
    assert env.database("sqlite:///var/x.sqlite3")["NAME"] == env.ROOT / "var/x.sqlite3"
    with pytest.raises(ImproperlyConfigured, match="sqlite needs a file"):
        env.database("sqlite:///")


def test_postgresql_with_a_host_or_a_socket_folder() -> None:
    found = env.database("postgresql://re%40lume:p%2Fw@db.example:5433/relume")
    assert [found[k] for k in ("USER", "PASSWORD", "HOST", "PORT", "NAME")] == [
        "re@lume", "p/w", "db.example", "5433", "relume",
    ]  # fmt: skip
    local = env.database("postgresql:///relume?host=%2Frun%2Fpg&port=5432&user=ada")
    assert [local[k] for k in ("USER", "HOST", "PORT")] == ["ada", "/run/pg", "5432"]


@pytest.mark.parametrize("url", ["mysql://x/y", "postgresql://host/", "postgresql://host:port/x", "relume.sqlite3"])
def test_other_databases_are_refused_by_name(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL"):
        env.database(url)


def test_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    for good in ("redis://h:6379/0", "rediss://h/1", "redis+socket:///run/valkey.sock?virtual_host=0"):
        monkeypatch.setenv("REDIS_URL", good)
        assert env.broker("REDIS_URL", "") == good
    for bad in ("h:6379", "amqp://h", "redis://", "redis://h:port/0", "redis+socket://"):
        monkeypatch.setenv("REDIS_URL", bad)
        with pytest.raises(ImproperlyConfigured, match="REDIS_URL"):
            env.broker("REDIS_URL", "")


def test_a_password_does_not_reach_the_error_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redi://:hunter2@h:6379/0")
    with pytest.raises(ImproperlyConfigured) as caught:
        env.broker("REDIS_URL", "")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", ["yes", "2", "true"])
def test_flags_are_0_or_1(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("RELUME_HTTPS", value)
    with pytest.raises(ImproperlyConfigured, match=f"RELUME_HTTPS='{value}'"):
        env.flag("RELUME_HTTPS", False)
