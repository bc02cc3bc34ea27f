"""The lane's own promises: this is the database it says, set up as in earnest, and models and migrations agree."""

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction

from tests import builders as b
from tests.database_lane import LANE

pytestmark = [pytest.mark.db, pytest.mark.django_db(transaction=True)]


def test_this_is_the_database_of_the_lane() -> None:
    assert connection.vendor == LANE
    if LANE == "sqlite":
        with connection.cursor() as cursor:
            modes = [cursor.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
        assert modes == ["wal", 2]
        assert connection.transaction_mode == "IMMEDIATE"  # type: ignore[attr-defined]


def test_models_and_migrations_agree() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_the_database_itself_refuses_what_must_not_be() -> None:
    job = b.training_job()
    b.attempt(job)
    for wrong in (lambda: b.training_job("tj-000000000002", state="dancing"), lambda: b.attempt(job)):
        with pytest.raises(IntegrityError), transaction.atomic():
            wrong()
