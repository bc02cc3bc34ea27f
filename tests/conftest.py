"""Fixtures for every room: the database lane, and builders that state only their difference from a quiet world."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import builders
from tests.database_lane import LANE


@pytest.fixture(scope="session")
def django_db_modify_db_settings(request: pytest.FixtureRequest) -> Iterator[None]:
    """SQLite tests run on a file in WAL mode, as in earnest: Django's default for tests is a database in memory."""
    from django.conf import settings

    worker = getattr(request.config, "workerinput", {}).get("workerid", "main")
    database = settings.DATABASES["default"]
    if LANE == "sqlite":
        with tempfile.TemporaryDirectory(prefix="relume-db-") as folder:
            database["TEST"]["NAME"] = str(Path(folder) / f"{worker}.sqlite3")
            yield
    else:
        database["TEST"]["NAME"] = f"relume_test_{worker}"
        yield


@pytest.fixture
def make_cluster(db: None) -> Callable[..., Any]:
    return builders.cluster


@pytest.fixture
def make_job(db: None) -> Callable[..., Any]:
    """`make_job(**columns)`: a registered training job of ada; its run token is `builders.TOKEN`."""
    return builders.training_job


@pytest.fixture
def make_attempt(db: None) -> Callable[..., Any]:
    """`make_attempt(job, generation=1, **columns)`."""
    return builders.attempt


@pytest.fixture
def make_node(db: None) -> Callable[..., Any]:
    return builders.node
