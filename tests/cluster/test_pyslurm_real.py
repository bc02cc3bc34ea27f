"""pyslurm on the real lab, where it is installed for the lab's Slurm; and, everywhere, the choice between the adapters.

Where pyslurm cannot be used there are no contract tests here at all: skipped ones would look as if something had run.
`test_the_choice_on_this_machine` says in its own output which it was, and why.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator
from dataclasses import fields
from importlib import metadata

import pytest

from controller.errors import SlurmTimeout, SlurmUnavailable
from controller.slurm import versions
from controller.slurm.calls import TimeLimits
from controller.slurm.choose import AdapterUnusable, choose
from controller.slurm.cli import CliSlurm
from controller.slurm.pyslurm import PySlurm
from controller.slurm.pyslurm_process import PySlurmProcess
from controller.slurm.views import JobView
from deploy.lab import rights
from deploy.lab.cluster import Lab
from deploy.lab.errors import LabError
from tests.cluster.test_slurm_contract import LabBench, adapter
from tests.slurm.contract import SlurmContract

pytestmark = pytest.mark.cluster

# Texts that pyslurm takes apart for good (see `pyslurm_views`), and what the commands do not ask for all jobs.
NOT_SEEN = {"tres", "tres_alloc", "extra", "run_time"}


def _why_not() -> str:
    """Empty where the installed pyslurm is for the Slurm that the lab will run."""
    if importlib.util.find_spec("pyslurm") is None:
        return "pyslurm is not installed"
    built_for = versions.parse(metadata.version("pyslurm")).release
    try:
        lab_has = versions.parse("{}.{:02}".format(*rights.slurm_version())).release
    except LabError as error:
        return str(error)
    return "" if built_for == lab_has else f"pyslurm is for Slurm {built_for}, the lab runs {lab_has}"


WHY_NOT = _why_not()


def test_the_choice_on_this_machine(lab: Lab) -> None:
    commands = adapter(lab, "controller")
    choice = choose("auto", commands)
    print(f"pyslurm contract: {'not collected: ' + WHY_NOT if WHY_NOT else 'collected'}; chosen: {choice}")
    if not WHY_NOT:
        assert choice.name == "pyslurm" and isinstance(choice.adapter, PySlurm)
        close(choice.adapter)
        return
    assert choice.adapter is commands and choice.final and "pyslurm" in choice.reason
    with pytest.raises(AdapterUnusable, match=r"docs/pyslurm\.md"):
        choose("pyslurm", commands)


def pyslurm_adapter(lab: Lab, role: str, limits: TimeLimits) -> PySlurm:
    """As production makes it: the adapter that `choose` gives for one user of the system."""
    chosen = choose("pyslurm", adapter(lab, role, limits=limits)).adapter
    assert isinstance(chosen, PySlurm)
    return chosen


def close(port: PySlurm) -> None:
    assert isinstance(port.reader, PySlurmProcess)
    port.reader.close()


class PySlurmBench(LabBench):
    port: PySlurm
    owner_port: PySlurm

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        self.port = pyslurm_adapter(lab, "controller", TimeLimits(write=3.0))
        self.owner_port = pyslurm_adapter(lab, "owner", TimeLimits())

    @property
    def commands(self) -> CliSlurm:
        assert isinstance(self.port.commands, CliSlurm)
        return self.port.commands


if not WHY_NOT:

    @pytest.fixture
    def bench(lab: Lab) -> Iterator[PySlurmBench]:
        made = PySlurmBench(lab)
        yield made
        close(made.port)
        close(made.owner_port)

    class TestPySlurm(SlurmContract):
        live = "pyslurm"

    def test_both_adapters_see_the_same(bench: PySlurmBench) -> None:
        """In one moment of a cluster with everything: array (task 0 too), het job, holds, a drain, a reservation."""
        bench.running(2)
        bench._sbatch(
            "--hold", "--constraint=h100", "--gres=gpu:2", '--comment=a=b "c"', script="#!/bin/sh\nsleep 60\n"
        )
        parent = bench._sbatch("--array=0-9:3%1", "--time=10", script="#!/bin/sh\nexec sleep 60\n")
        bench._sbatch("--hold", "-n1", ":", "-n1", script="#!/bin/sh\nexec sleep 60\n")
        bench.port.drain_node(bench.nodes[3], "somebody: cable, port=3")
        bench.port.reserve_nodes("relume-test", [bench.nodes[3]], user=bench.lab.users["owner"], minutes=5)
        bench.until(lambda: any(job.job_id == f"{parent}_0" and job.state.running for job in seen(bench)))
        for _ in range(40):  # what Slurm counts on by the second may change between the two readings
            if not (different := differences(bench)):
                break
            bench.pass_time(0.25)
        assert different == []
        mine, theirs = bench.port.read_array(parent), bench.commands.read_array(parent)
        assert {job.job_id for job in mine} == {job.job_id for job in theirs}
        assert bench.port.read_job(f"{parent}_0") is not None and bench.port.read_job(f"{parent}_1") is None

    def test_a_write_changes_nothing_else(bench: PySlurmBench) -> None:
        """pyslurm fills in a whole job description for each update: what it leaves empty must stay as it is."""
        odd = ("--nice=7", "--mail-type=FAIL", "--mail-user=ada@example.org", "--time=30", "--exclusive", "--comment=x")
        job_id = bench._sbatch("--hold", "--nodes=2", *odd, script="#!/bin/sh\nexec sleep 60\n")
        before = shown(bench, job_id)
        bench.port.exclude_nodes(job_id, [bench.nodes[0]])
        bench.port.update_comment(job_id, "y")
        changed = {key for key, value in shown(bench, job_id).items() if before.get(key) != value}
        assert changed == {"ExcNodeList", "Comment"}

    def test_a_call_that_hangs_ends_with_its_process(bench: PySlurmBench) -> None:
        """And the next one is answered by a new process."""
        bench.lab.freeze_slurmctld()
        short = dataclasses.replace(bench.port, limits=TimeLimits(batch=1.0, read=1.0, write=1.0))
        try:
            with pytest.raises(SlurmTimeout) as reading:
                short.read_node(bench.nodes[0])
            with pytest.raises(SlurmTimeout) as writing:
                short.drain_node(bench.nodes[0], "x")
        finally:
            bench.lab.freeze_slurmctld(frozen=False)
        assert (reading.value.outcome_unknown, writing.value.outcome_unknown) == (False, True)
        bench.until(lambda: bench.node(bench.nodes[1]).state.usable)

    def test_a_dead_slurmctld_is_an_error_and_no_empty_answer(bench: PySlurmBench) -> None:
        job = bench.running()
        bench.pass_time(6.0)  # slurmctld saves its jobs every few seconds: killed before that, it forgets this one
        bench.lab.stop_slurmctld()
        patient = dataclasses.replace(bench.port, limits=TimeLimits(batch=30.0, read=30.0, write=30.0))
        with pytest.raises(SlurmUnavailable) as away:
            patient.read_job(job.job_id)
        assert away.value.retry and not away.value.outcome_unknown
        assert patient.ping() is False
        bench.lab.start_slurmctld()
        bench.until(bench.port.ping)
        bench.until(lambda: bench.job(job.job_id).state.running)


def seen(bench: PySlurmBench) -> list[JobView]:
    return list(bench.port.read_cluster().jobs.values())


def differences(bench: PySlurmBench) -> list[str]:
    """Every fact of every node, job, partition and reservation in which the adapters do not agree."""
    mine, theirs = bench.port.read_cluster(), bench.commands.read_cluster()
    found = [f"config {key}" for key in mine.config if mine.config[key] != theirs.config[key]]
    for what in ("nodes", "jobs", "partitions", "reservations"):
        ours, others = getattr(mine, what), getattr(theirs, what)
        found += [f"{what} {name}: seen by one" for name in ours.keys() ^ others.keys()]
        for name in ours.keys() & others.keys():
            pair = facts(ours[name]), facts(others[name])
            found += [f"{what} {name} {k}: {pair[0][k]!r} {pair[1][k]!r}" for k in pair[0] if pair[0][k] != pair[1][k]]
    return found


def facts(view: object) -> dict[str, object]:
    """Where a job has no number of tasks, as a cancelled one has not, pyslurm says 1 (as in test_pyslurm_views)."""
    found = {f.name: getattr(view, f.name) for f in fields(view) if f.name not in NOT_SEEN}  # type: ignore[arg-type]
    return found | ({"num_tasks": view.num_tasks or 1} if isinstance(view, JobView) else {})


def shown(bench: PySlurmBench, job_id: str) -> dict[str, str]:
    text = bench.lab.run("scontrol", "-o", "show", "job", job_id, user="controller").stdout
    pairs = (word.partition("=") for word in text.split())
    return {key: value for key, _, value in pairs if key not in ("LastSchedEval", "AllocNode:Sid")}
