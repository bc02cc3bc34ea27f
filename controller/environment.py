"""The environment, read strictly: a value that cannot be understood stops the start and names itself."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

from controller.slurm.run_as import RunAs, parse

ROOT = Path(__file__).resolve().parent.parent


def text(name: str, default: str) -> str:
    return os.environ.get(name, "") or default


def flag(name: str, default: bool) -> bool:
    raw = os.environ.get(name, "")
    if raw not in ("", "0", "1"):
        raise ImproperlyConfigured(f"{name}={raw!r}: expected 0 or 1")
    return default if raw == "" else raw == "1"


def choice(name: str, allowed: tuple[str, ...], default: str) -> str:
    value = text(name, default)
    if value not in allowed:
        raise ImproperlyConfigured(f"{name}={value!r}: expected one of {', '.join(filter(None, allowed))}")
    return value


def path(name: str, default: Path) -> Path:
    try:
        return Path(text(name, str(default))).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ImproperlyConfigured(f"{name}={text(name, '')!r}: {error}") from None


def run_as(name: str) -> RunAs | None:
    """A prefix that makes a command another user's, as in `sudo -n -u slurm`; None when the variable is not set."""
    value = text(name, "")
    if not value:
        return None
    try:
        found = parse(value)
        pwd.getpwnam(found.user)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}={error}") from None
    except KeyError:
        raise ImproperlyConfigured(f"{name}={value!r}: there is no user {found.user!r}") from None
    return found


@dataclass(frozen=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def wildcard(self) -> bool:
        return self.host in ("0.0.0.0", "::")


def address(name: str, value: str) -> Address:
    """`ADDR:PORT`, an IPv6 address in brackets; the error says that `name` gave it."""
    host, colon, port = value.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in bare and bare == host) or not port.isascii() or not port.isdigit():
        raise ImproperlyConfigured(f"{name}={value!r}: expected ADDR:PORT, as in 127.0.0.1:8765 or [::1]:8765")
    if int(port) > 65535:
        raise ImproperlyConfigured(f"{name}={value!r}: {port} is not a port")
    return Address(bare, int(port))


def broker(name: str, default: str) -> str:
    """The URL of a Redis or Valkey: `redis://host:6379/0`, `rediss://…`, `redis+socket:///path?virtual_host=0`."""
    value = text(name, default)
    parts = _split(name, value)
    placed = parts.path if parts.scheme == "redis+socket" else parts.hostname
    if parts.scheme not in ("redis", "rediss", "redis+socket") or not placed:
        raise ImproperlyConfigured(
            f"{name}={_without_password(value)!r}: expected redis://HOST:PORT/N or redis+socket://"
        )
    return value


def _split(name: str, value: str) -> SplitResult:
    """A URL whose parts can all be read."""
    try:
        parts = urlsplit(value)
        _ = parts.port, parts.hostname
    except ValueError as error:
        raise ImproperlyConfigured(f"{name}={_without_password(value)!r}: {error}") from None
    return parts


def _without_password(url: str) -> str:
    """For error texts, which end up in logs."""
    before, at, after = url.rpartition("@")
    return f"{before.partition('://')[0]}://…@{after}" if at else url


def database(url: str) -> dict[str, Any]:
    """`sqlite:///PATH` (three slashes relative to the checkout, four absolute) or `postgresql://user:pw@host:port/name`.

    SQLite: BEGIN IMMEDIATE, a 20 s time-out and WAL; with Django's defaults over half of the concurrent transactions
    fail as locked. A PostgreSQL socket folder is given as `postgresql:///name?host=/folder&port=5432`.
    """
    parts = _split("DATABASE_URL", url)
    if parts.scheme == "sqlite":
        return _sqlite(parts.path)
    if parts.scheme in ("postgresql", "postgres"):
        return _postgresql(parts)
    raise ImproperlyConfigured(f"DATABASE_URL: {parts.scheme!r} is neither sqlite nor postgresql")


def _sqlite(raw: str) -> dict[str, Any]:
    if len(raw) < 2:
        raise ImproperlyConfigured("DATABASE_URL: sqlite needs a file, as in sqlite:///var/relume.sqlite3")
    name = Path(raw[1:]) if raw.startswith("//") else ROOT / raw[1:]
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": name,
        "CONN_MAX_AGE": 60,
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;",
        },
    }


def _postgresql(parts: SplitResult) -> dict[str, Any]:
    query = dict(parse_qsl(parts.query))
    name = unquote(parts.path.lstrip("/"))
    if not name:
        raise ImproperlyConfigured("DATABASE_URL: postgresql needs a database name")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or "") or query.get("user", ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or query.get("host", ""),
        "PORT": str(parts.port or query.get("port", "")),
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"connect_timeout": 10, "options": "-c statement_timeout=20000 -c lock_timeout=15000"},
    }
