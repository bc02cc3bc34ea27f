"""A real Slurm for all cluster tests of a session, quiet again after each of them; and a full one, where asked for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from deploy.demo import site_folder
from deploy.demo.controller import Controller, write_user_config
from deploy.lab import making, processes
from deploy.lab.cluster import Lab
from deploy.lab.errors import LabError
from deploy.lab.state import DEFAULT_PARENT, PREFIX, Process, fresh_directory
from tests.cluster.lab_probes import lab_py
from tests.cluster.lab_world import LabWorld

MADE_FOR = "made-for-tests.json"


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Four idle nodes gpu1 to gpu4. Without the rights for it the test fails: skipped, it would prove nothing."""
    yield from up_for_tests(full=False)


@pytest.fixture
def world(lab: Lab) -> LabWorld:
    """Our controller's parts on that lab, in the test's own process."""
    return LabWorld(lab)


@pytest.fixture(scope="session")
def full_lab() -> Iterator[Lab]:
    """A second lab, with accounting, the users of every rank, preemption, a hidden partition and a 5 s epilog."""
    yield from up_for_tests(full=True)


def up_for_tests(*, full: bool) -> Iterator[Lab]:
    try:
        remove_orphans()
        made = Lab.up(full=full)
    except LabError as error:
        pytest.fail(f"no lab: {error}", pytrace=False)
    (made.dir / MADE_FOR).write_text(json.dumps(asdict(processes.start_of(os.getpid()))))
    yield made
    made.down()


@pytest.fixture(scope="session")
def controller(lab: Lab) -> Iterator[Controller]:
    """`manage.py up` in act mode on the lab, as the demonstration starts it; its job owner may submit and read."""
    started = Controller(lab, site_folder.make(lab.dir / "site", Path(sys.prefix)))
    started.start()
    owner = lab.users["owner"]
    started.manage("create_user", owner)
    write_user_config(Path(lab.state.as_json()["homes"]["owner"]), owner, started.url, started.token(owner, "submit"))
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def quiet_afterwards(request: pytest.FixtureRequest) -> Iterator[None]:
    """Jobs ended, nodes and cables repaired, reservations deleted, settings as they came up, every node idle."""
    used = [request.getfixturevalue(name) for name in ("lab", "full_lab") if name in request.fixturenames]
    yield
    for one in used:
        one.heal()


@pytest.fixture
def directory() -> Iterator[Path]:
    """A place for one more lab, removed if the test did not get to it."""
    chosen = fresh_directory()
    yield chosen
    if chosen.exists():
        lab_py("down", "--dir", str(chosen))


def remove_orphans() -> None:
    """Labs of test sessions that were killed: a session that is gone cannot remove its own."""
    for mark in DEFAULT_PARENT.glob(f"{PREFIX}*/{MADE_FOR}"):
        if not processes.is_alive(Process(**json.loads(mark.read_text()))):
            making.down(mark.parent)
