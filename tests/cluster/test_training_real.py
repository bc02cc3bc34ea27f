"""The whole: real Slurm, `manage.py up`, `relume sbatch`, torch on gloo. What must not happen, and what must."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from deploy.demo.controller import Controller
from deploy.demo.training import Job
from deploy.lab.cluster import Lab
from tests.cluster.training_world import FULL, World, committed
from worker_hooks.protocol.losses import read_losses

pytestmark = [pytest.mark.cluster, pytest.mark.whole, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def world(lab: Lab, controller: Controller) -> World:
    return World(lab, controller)


def test_nothing_happens_when_nothing_is_wrong(world: World) -> None:
    """One training job through five disturbances that are no node's fault: one attempt, no incident, no point lost."""
    job = world.submit("undisturbed", epochs=300, steps_per_epoch=100, batch=1, checkpoint_every=50)
    first = world.until(job, lambda d: (d["step"] or 0) >= 5, "the first steps")
    node = first["attempts"][0]["nodes"][1]

    assert world.signal_agents(node, signal.SIGSTOP) == 1
    time.sleep(2)
    world.signal_agents(node, signal.SIGCONT)

    world.lab.freeze_slurmctld()
    time.sleep(60 if FULL else 15)
    world.lab.freeze_slurmctld(frozen=False)

    world.lab.cut_controller()
    time.sleep(60 if FULL else 15)
    world.lab.restore_controller()

    world.lab.kill_slurmd(node)
    time.sleep(8)
    world.lab.restore(node)

    before = _steps_written(job.run_folder)
    world.controller.stop()
    time.sleep(180 if FULL else 20)
    during = _steps_written(job.run_folder)
    world.controller.start()
    assert during > before, "training waited for the controller"

    world.until(job, lambda d: (d["step"] or 0) > during, "the steps made meanwhile")
    world.lab.run("scancel", job.slurm_job_id, user="owner")
    done = world.until(job, lambda d: d["state"] == "cancelled", "the cancelled state")
    assert done["incidents"] == []
    assert len(done["attempts"]) == 1
    for rank in range(job.plan.world):
        steps = list(read_losses(job.run_folder, rank))
        assert _points(world, job, rank, len(steps)) == steps, f"rank {rank}: a point is missing or came twice"


def _points(world: World, job: Job, rank: int, expected: int) -> list[int]:
    """Steps of the loss points in the database, in order; waits a while for the last ones."""
    rows = f"MetricChunk.objects.filter(training_job__run_id='{job.run_id}', name='loss', rank={rank})"
    for _ in range(15):
        points: list[int] = json.loads(world.ask_database(f"sorted(s for c in {rows} for s in c.steps)"))
        if len(points) >= expected:
            break
        time.sleep(1)
    return points


def test_a_cut_off_attempt_commits_nothing_although_it_goes_on(world: World) -> None:
    """Its node cut off and its agent stopped, so that nobody ends them, the old ranks train on and try to commit."""
    witness = world.submit("witness", nodes=1, epochs=300, steps_per_epoch=100, batch=1, checkpoint_every=1000)
    job = world.submit("cut-off", nodes=1, epochs=300, steps_per_epoch=100, batch=2, checkpoint_every=10)
    world.until(witness, lambda d: (d["step"] or 0) >= 1, "the witness trains")
    first = world.until(job, lambda d: (d["step"] or 0) >= 12, "the first checkpoints")
    (node,) = first["attempts"][0]["nodes"]

    world.lab.cut_network(node)
    assert world.signal_agents(node, signal.SIGSTOP) >= 1
    old_ranks = world.processes(node, "examples/gpt.py")
    at_successor = world.until(job, lambda d: len(d["attempts"]) == 2, "a successor")
    minted = json.loads((job.run_folder / "generations" / "000002.json").read_text())
    assert old_ranks, "the old ranks were to be alive when the successor started"

    done = world.until(job, lambda d: (d["attempts"][-1]["step"] or 0) >= 40, "the successor's progress")
    accepted = set(minted["accepted"])
    assert accepted, "the successor started from a checkpoint of the first attempt"
    late = [name for name in committed(job) if name.endswith(".g1") and name not in accepted]
    assert late == [], "the superseded attempt committed after its successor was minted"
    assert at_successor["attempts"][1]["nodes"] != [node]
    assert done["recoveries"][0]["verification"] in ("PASS", "")
    assert node not in done["attempts"][1]["nodes"]
    world.lab.run("scancel", job.slurm_job_id, witness.slurm_job_id, user="owner")
    for run in (job, witness):
        world.until(run, lambda d: d["state"] == "cancelled", "the cancelled state")


def test_the_demonstration(tmp_path: Path) -> None:
    """The whole story as `make demo ARGS=--once` runs it, with the cables pulled instead of a killed host.

    Killed hosts, and the batch host as victim, are the campaign's.
    """
    report = _demo(["--fault", "cut-network", "--keep", str(tmp_path)])
    assert report["verified"], report
    assert report["bit_identical"], report["differences"]
    assert report["steps"] == report["reference"]["steps"] == 120
    assert report["rpo_steps"] > 0, "the fault was to cost some steps"
    assert abs(sum(report["phases"].values()) - report["rto_s"]) < 1e-3
    assert report["phases"].keys() == report["phase_sources"].keys() and all(report["phase_sources"].values())


def test_a_sabotaged_resume_is_caught(tmp_path: Path) -> None:
    report = _demo(["--sabotage", "rng", "--keep", str(tmp_path)], expect=1)
    assert (report["verified"], report["failed_checks"]) == (False, ["random_state"])


def _demo(arguments: list[str], expect: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "deploy.demo", "--once", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == expect, done.stdout[-3000:] + done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def _steps_written(run_folder: Path) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in run_folder.glob("losses/rank-00000.g*.jsonl"))
