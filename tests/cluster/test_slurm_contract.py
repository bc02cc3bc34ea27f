"""The port's contract on a real Slurm, and what only a real one can show."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from typing import Literal

import pytest

from controller.errors import SlurmUnavailable
from controller.slurm import columns
from controller.slurm.cli import CliSlurm, TimeLimits
from controller.slurm.port import SlurmPort
from controller.slurm.runner import Runner, slurm_env
from controller.slurm.views import JobView
from deploy.lab.cluster import Lab
from tests.slurm.bench import Bench
from tests.slurm.contract import SlurmContract

pytestmark = pytest.mark.cluster

SCRIPTS = {
    "at once": "#!/bin/bash\nexec sleep 600\n",
    "slowly": "#!/bin/bash\ntrap 'sleep 3; exit 0' TERM\nsleep 600 &\nwait\n",
    "by itself": "#!/bin/bash\nexit 3\n",
}


def adapter(lab: Lab, role: str, *, limits: TimeLimits | None = None) -> CliSlurm:
    """The command-line adapter as it runs in production: under one user of the system, behind a prefix."""
    run_as = ("setpriv", f"--reuid={lab.users[role]}", f"--regid={lab.users[role]}", "--init-groups", "--")
    runner = Runner(env=slurm_env(os.environ, lab.conf), run_as=run_as)
    return CliSlurm(clock=lambda: datetime.now(UTC), reader=runner, limits=limits or TimeLimits())


class LabBench(Bench):
    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.nodes = tuple(lab.names)  # type: ignore[assignment]
        self.port: SlurmPort = adapter(lab, "controller", limits=TimeLimits(write=3.0))
        self.owner_port: SlurmPort = adapter(lab, "owner")

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
        wishes = [f"--nodes={nodes}", "--requeue" if requeue else "--no-requeue"]
        wishes += [] if shared else ["--gres=gpu:8"]
        wishes += [f"--nodelist={on}"] if on else []
        wishes += ["--hold"] if held else []
        return self._sbatch(*wishes, script=SCRIPTS[leaves])

    def submit_array(self, tasks: list[int]) -> list[str]:
        array = self._sbatch(f"--array={','.join(map(str, tasks))}", script=SCRIPTS["at once"])
        return [f"{array}_{task}" for task in tasks]

    def _sbatch(self, *wishes: str, script: str) -> str:
        home = self.lab.dir / "home" / "owner"
        return self.lab.run(
            "sbatch", "--parsable", "--output=/dev/null", *wishes, stdin=script, cwd=home
        ).stdout.strip()

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)

    @contextmanager
    def lost_answer(self, call: str) -> Iterator[None]:
        self.lab.freeze_slurmctld()
        try:
            yield
        finally:
            self.lab.freeze_slurmctld(frozen=False)


@pytest.fixture
def bench(lab: Lab) -> LabBench:
    return LabBench(lab)


class TestCommandLine(SlurmContract):
    live = "cli"  # tests.slurm.live_record writes its outcomes down


def test_a_name_that_imitates_records_is_only_a_name(bench: LabBench) -> None:
    """A job name may hold line breaks: in the text form it can pose as attributes, and as other jobs."""
    honest = bench.submit(held=True)
    forged = f"x\nJobId={honest} JobName=y UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=1 JobState=FAILED"
    liar = bench._sbatch("--hold", f"--job-name={forged}", "--comment=a\nb Requeue=0", script=SCRIPTS["at once"])
    view = bench.port.read_cluster()
    assert view.jobs[honest].state.pending and view.jobs[honest].user == bench.lab.users["owner"]
    assert view.jobs[liar].name == forged and view.jobs[liar].user == bench.lab.users["owner"]
    assert bench.job(liar).name == forged and bench.job(liar).comment == "a\nb Requeue=0"
    assert bench.job(honest).name != forged


def test_a_dead_slurmctld_is_an_error_and_no_empty_answer(bench: LabBench) -> None:
    job = bench.running()
    bench.pass_time(6.0)  # slurmctld saves its jobs every few seconds: killed before that, it forgets this one
    bench.lab.stop_slurmctld()
    # Each of these takes 9 s: Slurm's own commands try that long to connect.
    with pytest.raises(SlurmUnavailable) as away:
        bench.port.read_job(job.job_id)
    assert away.value.retry and not away.value.outcome_unknown
    with pytest.raises(SlurmUnavailable):
        bench.owner_port.hold_job(job.job_id)
    assert bench.port.ping() is False
    bench.lab.start_slurmctld()
    bench.until(bench.port.ping)
    bench.until(lambda: bench.job(job.job_id).state.running)
    assert not bench.job(job.job_id).held


# What Slurm's own answers do not say in the same words: a pattern or its expansion, a time that runs on.
NOT_COMPARED = {"run_time", "extra", "stdout", "stderr"}


def test_three_ways_of_reading_jobs_give_the_same_facts(bench: LabBench) -> None:
    """One squeue with columns of our own (the poll), one record of scontrol each, and JSON."""
    fails, held = bench.submit(leaves="by itself"), bench.submit(held=True)
    bench.running(2)
    bench.until(lambda: bench.job(fails).state.terminal)
    tasks = bench.submit_array([1, 2])
    bench.until(lambda: all(bench.job(task).state.running for task in tasks))  # till then they may share a record
    bench._sbatch("--hold", "--array=1-400:2%3", script=SCRIPTS["at once"])  # longer than Slurm prints by itself
    bench._sbatch("--hold", ":", "--nodes=2", "--hold", script=SCRIPTS["at once"])
    bench.port.exclude_nodes(held, bench.nodes[:2])
    port, version = bench.port, bench.port.version()
    assert isinstance(port, CliSlurm)
    table = {record.raw_id: record for record in map(columns.view_of, port._columns(version, None))}
    assert {job.raw_id for job in port.read_cluster().jobs.values()} == table.keys() and len(table) >= 8
    by_json = {job.raw_id: job for job in port._jobs_json(version)}
    by_text = {raw: bench.job(table[raw].job_id if "[" not in table[raw].job_id else str(raw)) for raw in table}
    for other in (by_json, by_text):
        assert {raw: facts(job) for raw, job in other.items()} == {raw: facts(job) for raw, job in table.items()}
    assert table[int(held)].excluded_nodes == bench.nodes[:2]


def facts(job: JobView) -> dict[str, object]:
    named = {field.name: getattr(job, field.name) for field in fields(job) if field.name not in NOT_COMPARED}
    return named | {"state": (job.state.base, job.state.flags)}
