"""An in-memory Slurm on a clock of its own, for tests of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from controller.slurm.fake import FakeSlurm
from controller.slurm.fake_rules import FakeOptions
from controller.slurm.views import JobView


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 29, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def made(clock: Clock, path: Path | None = None, **options: object) -> FakeSlurm:
    slurm = FakeSlurm(clock, path=path, options=FakeOptions(**options))  # type: ignore[arg-type]
    slurm.add_nodes("gpu1", "gpu2", "gpu3")
    return slurm


def job(slurm: FakeSlurm, job_id: str) -> JobView:
    found = slurm.read_job(job_id)
    assert found is not None
    return found
