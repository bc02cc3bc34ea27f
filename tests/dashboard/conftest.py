"""A signed-in reader, and a cache that does not outlive its database."""

from collections.abc import Callable, Iterator

import pytest
from django.test import Client

from controller.queries import series
from tests.dashboard import rows


@pytest.fixture(autouse=True)
def _fresh_cache() -> Iterator[None]:
    """Row ids repeat from test to test."""
    series.forget_all()
    yield
    series.forget_all()


@pytest.fixture
def sign_in(db: None) -> Callable[..., Client]:
    """`sign_in("ada")` or `sign_in("root", staff=True)`: a client of that user."""

    def signed_in(name: str, *, staff: bool = False) -> Client:
        client = Client()
        client.force_login(rows.user(name, staff=staff))
        return client

    return signed_in
