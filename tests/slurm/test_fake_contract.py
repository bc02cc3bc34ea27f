"""The contract on the in-memory Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from controller.slurm.fake import FakeSlurm
from controller.slurm.fake_rules import FakeOptions
from controller.slurm.port import SlurmPort
from tests.slurm.bench import Bench
from tests.slurm.contract import SlurmContract
from tests.slurm.fake_stage import Clock

pytestmark = pytest.mark.pure


class FakeBench(Bench):
    nodes = ("gpu1", "gpu2", "gpu3", "gpu4")

    def __init__(self, path: Path | None) -> None:
        self.clock = Clock()
        options = FakeOptions(completing=1.0, accounting=False)  # as in the plain lab
        # With a file the owner sees the same Slurm; in memory they share the store through it as well.
        self.slurm = FakeSlurm(self.clock, path=path, options=options)
        self.port: SlurmPort = self.slurm
        self.owner_port: SlurmPort = self.slurm.seen_by("ada")
        self.slurm.add_nodes(*self.nodes)

    def submit(
        self,
        nodes: int = 1,
        *,
        on: str = "",
        shared: bool = False,
        requeue: bool = True,
        held: bool = False,
        leaves: Literal["at once", "slowly", "by itself"] = "at once",
    ) -> str:
        job_id = self.slurm.submit(
            num_nodes=nodes,
            required=[on] if on else [],
            cpus_per_node=1 if shared else 8,
            requeue=requeue,
            held="JobHeldUser" if held else "",
        )
        if leaves == "by itself":
            self.slurm.tick()
            self.slurm.end_job(job_id, "FAILED", exit_code=3, reason="NonZeroExitCode")
        return job_id

    def submit_array(self, tasks: list[int]) -> list[str]:
        return self.slurm.submit_array(tasks)

    def pass_time(self, seconds: float) -> None:
        self.clock.pass_time(seconds)

    @contextmanager
    def lost_answer(self, call: str) -> Iterator[None]:
        self.slurm.fail_next("timeout", call=call, effect="later", delay=1.0)
        yield


@pytest.fixture(params=["memory", "file"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> FakeBench:
    return FakeBench(tmp_path / "slurm.json" if request.param == "file" else None)


class TestFake(SlurmContract):
    pass
