"""One real Slurm for all cluster tests of a session, quiet again after each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.lab.cluster import Lab
from deploy.lab.errors import LabError


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Four idle nodes gpu1 to gpu4. Without the rights for it the test fails: skipped, it would prove nothing."""
    try:
        made = Lab.up()
    except LabError as error:
        pytest.fail(f"no lab: {error}", pytrace=False)
    yield made
    made.down()


@pytest.fixture(autouse=True)
def quiet_afterwards(request: pytest.FixtureRequest) -> Iterator[None]:
    """Jobs ended, nodes and cables repaired, reservations deleted, every node idle."""
    used: Lab | None = request.getfixturevalue("lab") if "lab" in request.fixturenames else None
    yield
    if used is not None:
        used.heal()
