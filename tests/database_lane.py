"""Which database the `db` tests run on: `RELUME_TEST_DATABASE=sqlite` (a file, WAL; the default) or `postgresql`.

Loaded with `-p tests.database_lane`, because Django's settings read `DATABASE_URL` before any conftest is loaded. The
PostgreSQL lane brings its own private cluster, from Debian's binaries, in a temporary folder; without them it fails.
Under xdist the first process owns the cluster and its workers inherit the address.
"""

import os
import secrets
import tempfile
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.postgres import PrivatePostgres

LANES = ("sqlite", "postgresql")
LANE = os.environ.get("RELUME_TEST_DATABASE", "") or "sqlite"
OWNED = "RELUME_TEST_POSTGRES_URL"

_cluster: PrivatePostgres | None = None

if LANE not in LANES:
    raise pytest.UsageError(f"RELUME_TEST_DATABASE={LANE!r}: expected one of {', '.join(LANES)}")
if LANE == "postgresql":
    if OWNED not in os.environ:
        _cluster = PrivatePostgres(Path(tempfile.mkdtemp(prefix="relume-pg-")))
        _cluster.start()
        os.environ[OWNED] = _cluster.url("relume")
    os.environ["DATABASE_URL"] = os.environ[OWNED]
else:
    os.environ["DATABASE_URL"] = f"sqlite:///{Path(tempfile.gettempdir()) / f'relume-tests-{os.getpid()}.sqlite3'}"


def pytest_unconfigure() -> None:
    if _cluster is not None:
        _cluster.stop()
        os.environ.pop(OWNED, None)


def fresh_database(folder: Path) -> str:
    """The URL of an empty database of this lane, for processes that tests start."""
    if LANE == "sqlite":
        return f"sqlite:///{folder / 'relume.sqlite3'}"
    name = f"fresh_{secrets.token_hex(6)}"
    where = parse_qs(urlsplit(os.environ[OWNED]).query)["host"][0]
    return PrivatePostgres(Path(where)).create_database(name)
