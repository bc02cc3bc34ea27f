"""The lab itself: it is a real cluster, and its faults are what they say."""

from pathlib import Path

import pytest

from deploy.lab import making
from deploy.lab.cluster import Lab
from deploy.lab.errors import LabError
from deploy.lab.processes import is_alive, start_of
from tests.cluster.lab_probes import connect, eventually, job_processes

pytestmark = pytest.mark.cluster

SLEEPERS = """#!/bin/sh
srun sh -c 'echo "$(hostname) $(id -un) $SLURM_PROCID" >>"$HOME/seen"; exec sleep 600'
"""


@pytest.fixture
def job(lab: Lab) -> str:
    """A job of the owner's that sleeps on gpu1 and gpu2, two tasks on each."""
    home = lab.dir / "home" / "owner"
    (home / "seen").unlink(missing_ok=True)
    submit = ["sbatch", "--parsable", "--nodelist=gpu[1-2]", "-N2", "--ntasks-per-node=2", "--gres=gpu:8"]
    job_id = lab.run(*submit, stdin=SLEEPERS, cwd=home).stdout.strip()
    eventually(lambda: (home / "seen").exists() and len((home / "seen").read_text().splitlines()) == 4)
    return job_id


def test_a_job_runs_as_its_owner_inside_the_nodes(lab: Lab, job: str) -> None:
    owner = lab.users["owner"]
    seen = sorted((lab.dir / "home" / "owner" / "seen").read_text().splitlines())
    assert seen == [f"gpu1 {owner} 0", f"gpu1 {owner} 1", f"gpu2 {owner} 2", f"gpu2 {owner} 3"]
    assert len(job_processes(lab, 1)) >= 2 and len(job_processes(lab, 2)) >= 2
    assert not job_processes(lab, 3)
    host = Path("/proc/self/ns/net").stat().st_ino
    assert all(Path(f"/proc/{pid}/ns/net").stat().st_ino != host for pid in job_processes(lab, 2))


def test_nodes_know_each_other_by_name_and_share_no_memory_files(lab: Lab) -> None:
    found = lab.run("getent", "hosts", "gpu2", "gpu2-train", on=1).stdout.split()
    assert found[0::2] == [lab.state.node(2).management, lab.state.node(2).training]
    lab.run("touch", "/dev/shm/relume-lab-test", on=1)
    assert lab.run("test", "-e", "/dev/shm/relume-lab-test", on=1, check=False).returncode == 0
    assert lab.run("test", "-e", "/dev/shm/relume-lab-test", on=2, check=False).returncode == 1
    assert not Path("/dev/shm/relume-lab-test").exists()


def test_a_killed_node_is_silent_and_empty(lab: Lab, job: str) -> None:
    assert connect(lab, 2) == "open"
    before = [start_of(pid) for pid in lab.pids(2)]
    assert len(before) >= 4, "slurmd, a step daemon and two tasks"
    lab.kill_node(2)
    assert not any(is_alive(process) for process in before)
    assert lab.pids(2) == []
    assert connect(lab, 2) == "silent"
    assert connect(lab, 2, on=3) == "silent"
    assert connect(lab, 2, training=True, on=3) == "silent"
    assert connect(lab, 1) == "open"
    lab.restore(2)
    eventually(lambda: connect(lab, 2) == "open")


def test_a_cut_node_is_silent_and_lives_on(lab: Lab, job: str) -> None:
    before = job_processes(lab, 2)
    lab.cut_network(2)
    assert connect(lab, 2) == "silent"
    assert connect(lab, 2, training=True, on=1) == "silent"
    assert before and job_processes(lab, 2) == before
    lab.restore(2)
    eventually(lambda: connect(lab, 2) == "open")
    assert job_processes(lab, 2) == before


def test_one_cable_can_be_cut_alone(lab: Lab) -> None:
    lab.cut_network(2, "training")
    assert connect(lab, 2) == "open"
    assert connect(lab, 2, training=True, on=1) == "silent"


def test_a_host_without_slurmd_refuses(lab: Lab, job: str) -> None:
    before = job_processes(lab, 2)
    lab.kill_slurmd(2)
    assert connect(lab, 2) == "refused"
    assert before and job_processes(lab, 2) == before


def test_a_cut_controller_hears_no_node_while_nodes_hear_each_other(lab: Lab) -> None:
    lab.cut_controller()
    assert connect(lab, 1) == "silent"
    assert connect(lab, 2, on=1) == "open"
    assert connect(lab, 2, training=True, on=1) == "open"
    assert set(lab.node_states()) == set(lab.names), "the controller's host still reaches slurmctld"
    lab.restore_controller()
    eventually(lambda: connect(lab, 1) == "open")


def test_slurm_can_be_away(lab: Lab) -> None:
    lab.freeze_slurmctld()
    with pytest.raises(LabError, match="no answer within 2 s"):
        lab.run("sinfo", timeout=2)
    lab.freeze_slurmctld(frozen=False)
    lab.stop_slurmctld()
    lab.start_slurmctld()
    eventually(lab.node_states)


def test_only_slurm_user_may_change_nodes(lab: Lab) -> None:
    drain = ["scontrol", "update", "NodeName=gpu1", "State=DRAIN", "Reason=test"]
    for user in ("owner", "web"):
        refused = lab.run(*drain, user=user, check=False)
        assert refused.returncode != 0 and "Invalid user id" in refused.stderr
    assert lab.node_states()["gpu1"] == "idle"
    lab.run(*drain, user="controller")
    assert lab.node_states()["gpu1"] == "drained"


def test_slurms_own_timers_are_the_defaults(lab: Lab) -> None:
    shown = lab.run("scontrol", "show", "config").stdout
    settings = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    settings = {name.strip(): value.strip() for name, value in settings.items()}
    assert settings["SlurmdTimeout"] == "300 sec"
    assert settings["KillWait"] == "30 sec"
    assert settings["MinJobAge"] == "300 sec"
    assert settings["SlurmUser"].startswith(lab.users["controller"])


def test_status_tells_what_is_cut(lab: Lab) -> None:
    lab.cut_network(3, "management")
    lab.kill_slurmd(4)
    live = lab.status()["live"]["nodes"]
    assert (live["gpu3"]["management_up"], live["gpu3"]["training_up"]) == (False, True)
    assert (live["gpu4"]["slurmd"], live["gpu1"]["slurmd"]) == (False, True)


def test_what_keeps_a_lab_from_coming_up_is_named_with_its_log(lab: Lab) -> None:
    lab.run("scontrol", "update", "NodeName=gpu2", "State=DRAIN", "Reason=test", user="controller")
    with pytest.raises(LabError, match=r"gpu2 drained\n(.*\n)*.*slurmd-gpu2\.log:\n    \["):  # a line of the log
        making.wait_until_idle(lab.state, seconds=0.5)
    lab.stop_slurmctld()
    with pytest.raises(LabError, match=r"slurmctld ended\n.*slurmctld\.log:\n"):
        making.wait_until_idle(lab.state, seconds=0.5)
