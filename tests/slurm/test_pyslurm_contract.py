"""The contract on the adapter for pyslurm, over a double of pyslurm on the in-memory Slurm; and the adapter's errors.

The real pyslurm runs the same contract in tests/cluster/test_pyslurm_real.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from controller.errors import RefusalKind, SlurmRefused, SlurmTimeout, SlurmUnavailable, SlurmUnreadable
from controller.slurm.fake import FakeSlurm
from controller.slurm.pyslurm import PySlurm
from controller.slurm.views import ReservationView
from tests.slurm.contract import SlurmContract, expect_refusal
from tests.slurm.pyslurm_double import InThisProcess
from tests.slurm.test_fake_contract import FakeBench

pytestmark = pytest.mark.pure


class Commands(FakeSlurm):
    def read_reservations(self) -> Mapping[str, ReservationView]:
        return self.read_cluster().reservations


def adapter(slurm: FakeSlurm) -> PySlurm:
    slurm.__class__ = Commands
    process = InThisProcess(slurm)
    return PySlurm(slurm._clock, slurm, "22.05", process, process, process)  # type: ignore[arg-type]


class PySlurmBench(FakeBench):
    port: PySlurm

    def __init__(self) -> None:
        super().__init__(None)
        self.port = adapter(self.slurm)
        self.owner_port = adapter(self.slurm.seen_by("ada"))

    @property
    def asked(self) -> list[str]:
        assert isinstance(self.port.reader, InThisProcess)
        return self.port.reader.asked


@pytest.fixture
def bench() -> PySlurmBench:
    return PySlurmBench()


class TestPySlurmDouble(SlurmContract):
    pass
