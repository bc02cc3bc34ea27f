"""Every trap of a requeue with an exclusion, on a real Slurm: each test is one requeue through our own handlers.

Here: what the job is, and what its processes and its Slurm do. `test_requeue_nodes_real`: which nodes it gets.
`test_requeue_answers_real`: calls and launches that fail.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from controller.slurm.views import HoldKind
from tests.cluster.lab_world import WHOLE_NODE, LabWorld

pytestmark = [pytest.mark.cluster, pytest.mark.django_db]

STUBBORN = "#!/bin/bash\ntrap '' TERM\nwhile :; do sleep 0.2; done\n"


# what is forbidden


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--no-requeue",), "--no-requeue"), (("--nodelist=gpu2",), "requires gpu2 by name")],
)
def test_what_the_user_forbade_is_refused_and_nothing_is_broken(
    world: LabWorld, options: tuple[str, ...], said: str
) -> None:
    job = world.running(*options)
    before = world.view()
    action = world.carry_out(world.order(job, "gpu2"))
    assert action.state == "refused" and said in action.outcome and "scontrol" in action.outcome
    after = world.view()
    assert (after.state.base, after.restarts, after.excluded_nodes) == ("RUNNING", 0, ()) and not after.held
    assert after.start_time == before.start_time and world.slurm.read_cluster().reservations == {}


def test_the_sites_default_is_told_apart_from_the_users_word(world: LabWorld) -> None:
    world.lab.job_requeue(False)
    job = world.running()
    action = world.carry_out(world.order(job))
    assert action.state == "refused" and "JobRequeue=0" in action.outcome
    # What the sentence says works.
    world.scontrol("update", f"JobId={world.job_id}", "Requeue=1", user="owner")
    assert world.carry_out(world.order(job)).state == "done"


# processes that do not go


def test_a_job_that_does_not_go_is_waited_for_and_said(world: LabWorld) -> None:
    """Ranks that ignore SIGTERM, under a slurmstepd that is stopped as if in the kernel: COMPLETING until it goes."""
    world.lab.set_kill_wait(5)
    job = world.running(WHOLE_NODE, script=STUBBORN)
    node = world.view().nodes[0]
    stuck = [pid for pid in world.lab.pids(node) if Path(f"/proc/{pid}/comm").read_text().strip() == "slurmstepd"]
    assert stuck
    for pid in stuck:
        os.kill(pid, signal.SIGSTOP)
    action = world.order(job)
    try:
        world.until(lambda: world.says(action, "have not ended"), "it says what it waits for", 30)
        assert node in action.outcome and "KillWait" in action.outcome and world.view().state.completing
    finally:
        for pid in stuck:
            os.kill(pid, signal.SIGCONT)
    world.carry_out(action, 60)
    assert action.state == "done" and world.view().restarts == 1
    assert action.progress["settled_at"] - action.progress["killed_at"] > 5.0


# arrays and het jobs


def test_a_task_is_requeued_alone(world: LabWorld) -> None:
    array = world.submit("--array=1-9%2", "-N1", WHOLE_NODE)
    world.job_id = f"{array}_2"
    world.until(lambda: world.view().state.running, "the task runs")
    other = world.slurm.read_job(f"{array}_1")
    assert other is not None
    bad = world.view().nodes[0]
    action = world.carry_out(world.order(world.enrol(world.job_id), bad))
    assert action.state == "done" and world.view().restarts == 1 and world.view().excluded_nodes == (bad,)
    after = world.slurm.read_job(f"{array}_1")
    assert after is not None and (after.state.base, after.restarts, after.excluded_nodes) == ("RUNNING", 0, ())
    waiting = world.enrol(f"{array}_8")
    world.job_id = f"{array}_2"
    refused = world.carry_out(world.order(waiting, bad))
    assert refused.state == "refused" and "has not been started" in refused.outcome


def test_a_het_job_is_requeued_whole(world: LabWorld) -> None:
    """Only the backfill scheduler starts het jobs, every half minute: it is waited for at the start, and not again."""
    script = world.lab.dir / "home" / "owner" / "het.sh"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    first = ["-N1", "-w", "gpu1", WHOLE_NODE]
    world.job_id = world.lab.run(
        *("sbatch", "--parsable", "-o", "/dev/null", *first, ":", "-N1", WHOLE_NODE, str(script)), cwd=script.parent
    ).stdout.strip()
    world.until(lambda: world.view().state.running, "the het job runs", 90)
    time.sleep(1.0)
    second = world.slurm.read_array(world.job_id)[1]
    (bad,) = second.nodes
    action = world.carry_out(world.order(world.enrol(world.job_id), bad), 90)
    assert action.state == "done", action.outcome
    parts = world.slurm.read_array(world.job_id)
    assert [part.restarts for part in parts] == [1, 1] and not any(part.held for part in parts)
    assert all(bad in part.excluded_nodes for part in parts)  # Slurm itself keeps gpu1 from the second


# whose hold it is


@pytest.mark.parametrize(("who", "words"), [("owner", "its owner"), ("root", "an operator or administrator")])
def test_a_persons_hold_outlives_the_requeue(world: LabWorld, who: str, words: str) -> None:
    job = world.running(WHOLE_NODE)
    bad = world.view().nodes[0]
    world.scontrol("hold", world.job_id, user=who)
    action = world.carry_out(world.order(job, bad))
    assert action.state == "refused" and f"held by {words}" in action.outcome
    view = world.view()
    assert view.state.pending and view.restarts == 1 and view.excluded_nodes == (bad,)
    assert view.hold_kind is (HoldKind.USER if who == "owner" else HoldKind.ADMIN)


# a job that Slurm forgot


def test_a_job_that_a_killed_slurmctld_forgot_is_not_called_ended(
    world: LabWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmctld writes its state every five seconds: killed before that, it does not know the newest job. It may write
    right away, too: here it finds the files of the moment before the job came."""
    monkeypatch.setattr("controller.remediation.handlers.requeue.gone.RESTARTED_LOOK_S", 3.0)
    world.until(world.slurm.ping, "slurmctld answers")
    kept = world.lab.dir / "slurmctld"
    before = {path: path.read_bytes() for path in kept.glob("job_state*")}
    world.job_id = world.submit(WHOLE_NODE)
    job = world.enrol(world.job_id)
    action = world.order(job)
    world.lab.stop_slurmctld()
    for path in kept.glob("job_state*"):
        if path in before:
            path.write_bytes(before[path])
        else:
            path.unlink()
    world.lab.start_slurmctld()
    world.until(world.slurm.ping, "slurmctld answers", 60)
    if world.slurm.read_job(world.job_id) is not None:
        pytest.fail("slurmctld kept the job: nothing is shown")
    world.until(lambda: world.says(action, "was restarted at"), "it says that slurmctld was restarted", 20)
    world.carry_out(action)
    assert action.state == "refused" and "no accounting" in action.outcome and "may have forgotten" in action.outcome
