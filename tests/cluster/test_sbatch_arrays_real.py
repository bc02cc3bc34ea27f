"""Arrays and het jobs on a real cluster: one submission, the training jobs that it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.lab.cluster import Lab
from tests.cluster.sbatch_world import CALL, Desk, eventually, open_desk

pytestmark = pytest.mark.cluster


@pytest.fixture
def desk(lab: Lab) -> Iterator[Desk]:
    yield from open_desk(lab)


def test_every_task_of_an_array_is_a_run_of_its_own_that_survives_a_requeue(desk: Desk) -> None:
    script = desk.script(f"exec {desk.ranks({'steps': 3, 'end': 'hang'}, ranks=1)}")
    done = desk.submit("--parsable", "-a", "3-4%2", "-o", "task%a", "--relume-checkpoint-root=ck", script)
    array = done.stdout.strip()
    run = desk.identity(array)["run_id"]
    (told,) = desk.controller.registrations
    assert (told["run_id"], told["array"], told["slurm_job_id"]) == (run, "3-4%2", array)

    def spoke(restarts: int) -> set[tuple[str, str, int]]:
        messages = [m for m in list(desk.controller.messages) if m["job"]["restart_count"] >= restarts]
        return {(m["run_id"], m["job"]["slurm_job_id"], m["generation"]) for m in messages}

    first = {(f"{run}-{task}", f"{array}_{task}", 1) for task in (3, 4)}
    assert eventually(lambda: found if len(found := spoke(0)) == 2 else None) == first
    desk.lab.run("scontrol", "requeue", f"{array}_3")
    eventually(lambda: desk.job(f"{array}_3")["JobState"] == "PENDING")
    eventually(lambda: desk.controller.events("stopped"))
    desk.lab.run("scontrol", "update", f"JobId={array}_3", "StartTime=now")
    assert eventually(lambda: spoke(1)) == {(f"{run}-3", f"{array}_3", 2)}
    assert sorted(path.name for path in (desk.home / "ck").glob("tj-*")) == [f"{run}-3", f"{run}-4"]


def test_what_a_task_submits_is_no_task(desk: Desk) -> None:
    """A job inherits the SLURM_ARRAY_* of the task that submitted it."""
    ranks = desk.ranks({"steps": 1}, ranks=1)
    desk.script(f"exec {ranks}", name="child.sh")
    script = desk.script(f'python3 -c "{CALL}" sbatch -o child child.sh >submitted')
    array = desk.submit("--parsable", "-a", "7", "-o", "parent", script).stdout.strip()
    (child,) = eventually(lambda: [item for item in desk.identities if item["array"] is None and item["slurm_job_id"]])
    message = eventually(lambda: next((m for m in list(desk.controller.messages)), None))
    assert (message["run_id"], message["job"]["slurm_job_id"]) == (child["run_id"], child["slurm_job_id"])
    assert child["slurm_job_id"] != array and child["run_id"] != desk.identity(array)["run_id"]


def test_a_het_job_is_one_training_job_with_one_world_of_ranks(desk: Desk) -> None:
    """Het jobs are started by the backfill scheduler only: every second here, every half a minute by default."""
    desk.lab.configure(SchedulerParameters="bf_interval=1")
    desk.lab.stop_slurmctld()  # a scheduler that sleeps finishes its half minute first
    desk.lab.start_slurmctld()
    both = desk.ranks({"steps": 3}, "--het-group=0,1", ranks=1)
    second = desk.ranks({"steps": 1}, "--het-group=1", ranks=1)
    script = desk.script(f"{both}\n{second}\necho code $?", "#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2")
    leader = desk.submit("--parsable", "-o", "het", "--relume-checkpoint-root=ck", script).stdout.strip()
    desk.ended(leader)
    text = (desk.home / "het").read_text()
    run = desk.identity(leader)["run_id"]
    assert {(m["run_id"], m["job"]["slurm_job_id"], m["generation"]) for m in desk.controller.messages} == {
        (run, leader, 1)
    }
    assert len({m["node"] for m in desk.controller.messages}) == 3
    assert all(desk.controller.values(rank=rank) == [1, 2, 3] for rank in range(3))
    assert "code 2" in text and "a het job is one training job" in text
    assert desk.job(leader)["HetJobId"] == leader and desk.job(leader)["Requeue"] == "1"
    # Nodes stay "planned" until the scheduler comes round again; one that starts anew has planned nothing.
    desk.lab.stop_slurmctld()
    desk.lab.start_slurmctld()
