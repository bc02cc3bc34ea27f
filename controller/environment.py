"""The environment, read strictly: a value that cannot be understood stops the start and names itself."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

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
    return Path(text(name, str(default))).expanduser().resolve()


def database(url: str) -> dict[str, Any]:
    """`sqlite:///PATH` (three slashes relative to the checkout, four absolute) or `postgresql://user:pw@host:port/name`.

    SQLite: BEGIN IMMEDIATE, a 20 s time-out and WAL; with Django's defaults over half of the concurrent transactions
    fail as locked. A PostgreSQL socket folder is given as `postgresql:///name?host=/folder&port=5432`.
    """
    parts = urlsplit(url)
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
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;",
        },
    }


def _postgresql(parts: Any) -> dict[str, Any]:
    query = dict(pair.split("=", 1) for pair in parts.query.split("&") if "=" in pair)
    name = unquote(parts.path.lstrip("/"))
    if not name:
        raise ImproperlyConfigured("DATABASE_URL: postgresql needs a database name")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or query.get("user", "")),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or unquote(query.get("host", "")),
        "PORT": str(parts.port or query.get("port", "")),
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"connect_timeout": 10, "options": "-c statement_timeout=20000 -c lock_timeout=15000"},
    }
