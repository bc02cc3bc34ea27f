"""One real Slurm for all cluster tests of a session, quiet again after each of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from deploy.lab import making, processes
from deploy.lab.cluster import Lab
from deploy.lab.errors import LabError
from deploy.lab.state import DEFAULT_PARENT, PREFIX, Process

MADE_FOR = "made-for-tests.json"


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Four idle nodes gpu1 to gpu4. Without the rights for it the test fails: skipped, it would prove nothing."""
    try:
        remove_orphans()
        made = Lab.up()
    except LabError as error:
        pytest.fail(f"no lab: {error}", pytrace=False)
    (made.dir / MADE_FOR).write_text(json.dumps(asdict(processes.start_of(os.getpid()))))
    yield made
    made.down()


@pytest.fixture(autouse=True)
def quiet_afterwards(request: pytest.FixtureRequest) -> Iterator[None]:
    """Jobs ended, nodes and cables repaired, reservations deleted, every node idle."""
    used: Lab | None = request.getfixturevalue("lab") if "lab" in request.fixturenames else None
    yield
    if used is not None:
        used.heal()


def remove_orphans() -> None:
    """Labs of test sessions that were killed: a session that is gone cannot remove its own."""
    for mark in DEFAULT_PARENT.glob(f"{PREFIX}*/{MADE_FOR}"):
        if not processes.is_alive(Process(**json.loads(mark.read_text()))):
            making.down(mark.parent)
