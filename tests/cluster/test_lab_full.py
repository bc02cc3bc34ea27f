"""The full lab: rights by rank, preemption, what is hidden, accounting, and settings that change while it runs."""

import re
import subprocess
from pathlib import Path

import pytest

from deploy.lab.cluster import Lab
from deploy.lab.errors import LabError
from deploy.lab.processes import is_alive
from tests.cluster.lab_probes import commands, eventually, lab_py
from tests.cluster.lab_traces import residents_of, traces

pytestmark = pytest.mark.cluster

SLEEPER = "#!/bin/sh\nexec sleep 600\n"
DRAIN = ("scontrol", "update", "NodeName=gpu4", "State=DRAIN", "Reason=test")


def submit(lab: Lab, *options: str, user: str = "owner") -> str:
    argv = ["sbatch", "--parsable", "-o", "/dev/null", *options]
    return lab.run(*argv, stdin=SLEEPER, user=user).stdout.strip()


def state_of(lab: Lab, job_id: str) -> str:
    return lab.run("squeue", "-h", "-a", "-j", job_id, "-o", "%T", user="controller").stdout.strip()


def running(lab: Lab, *options: str, user: str = "owner") -> str:
    job_id = submit(lab, *options, user=user)
    eventually(lambda: state_of(lab, job_id) == "RUNNING")
    return job_id


def setting(lab: Lab, name: str) -> str:
    shown = lab.run("scontrol", "show", "config", user="controller").stdout
    return next(line.partition("=")[2].strip() for line in shown.splitlines() if line.startswith(f"{name} "))


def refused(lab: Lab, *argv: str, user: str) -> bool:
    done = lab.run(*argv, user=user, check=False)
    assert done.returncode == 0 or re.search("[Pp]ermission denied|Invalid user id", done.stderr), done.stderr
    return done.returncode != 0


def test_each_rank_may_do_what_slurm_gives_it(full_lab: Lab) -> None:
    job_id = submit(full_lab, "--begin=now+1hour")
    users = ("owner", "other", "operator", "administrator", "controller")
    may_hold = {user for user in users if not refused(full_lab, "scontrol", "hold", job_id, user=user)}
    assert may_hold == {"owner", "operator", "administrator", "controller"}
    may_drain = {user for user in users if not refused(full_lab, *DRAIN, user=user)}
    assert may_drain == {"administrator", "controller"}


def test_a_user_whom_accounting_does_not_know_cannot_submit(full_lab: Lab) -> None:
    done = full_lab.run("sbatch", "--wrap", "true", user="web", check=False)
    assert done.returncode != 0 and "Invalid account" in done.stderr


def test_an_urgent_job_requeues_one_partitions_jobs_and_suspends_the_others(full_lab: Lab) -> None:
    requeued = running(full_lab, "-w", "gpu1", "-c16")
    suspended = running(full_lab, "-w", "gpu2", "-c16", "-p", "gang")
    urgent = submit(full_lab, "-w", "gpu[1-2]", "-N2", "-c16", "-p", "urgent", user="other")
    eventually(lambda: state_of(full_lab, urgent) == "RUNNING", seconds=60)
    assert state_of(full_lab, requeued) == "PENDING"
    assert state_of(full_lab, suspended) == "SUSPENDED"
    full_lab.run("scancel", urgent, user="other")
    eventually(lambda: state_of(full_lab, suspended) == "RUNNING", seconds=60)


def test_jobs_in_one_gang_partition_take_turns(full_lab: Lab) -> None:
    pair = {submit(full_lab, "-w", "gpu1", "-c16", "-p", "gang", user=user) for user in ("owner", "other")}
    seen = set()

    def both_had_their_turn() -> bool:
        states = {job_id: state_of(full_lab, job_id) for job_id in pair}
        if sorted(states.values()) == ["RUNNING", "SUSPENDED"]:
            seen.update(job_id for job_id, word in states.items() if word == "RUNNING")
        return seen == pair

    eventually(both_had_their_turn, seconds=60)


def test_a_hidden_partition_is_seen_by_those_who_ask_for_all(full_lab: Lab) -> None:
    job_id = running(full_lab, "-p", "hidden")
    plain, everything = (full_lab.run("squeue", "-h", *more, "-o", "%i").stdout.split() for more in ((), ("-a",)))
    assert (plain, everything) == ([], [job_id])
    assert "hidden" not in full_lab.run("sinfo", "-h", "-o", "%P").stdout


def test_the_epilog_keeps_an_ended_job_completing(full_lab: Lab) -> None:
    job_id = running(full_lab, "-w", "gpu1")
    full_lab.run("scancel", job_id)

    eventually(lambda: "sleep 5" in commands(full_lab.pids(1)))
    assert state_of(full_lab, job_id) == "COMPLETING"


def test_kill_wait_is_short_and_can_be_slurms_own(full_lab: Lab) -> None:
    place = ("--dir", str(full_lab.dir))
    assert setting(full_lab, "KillWait") == "5 sec"
    assert lab_py("kill-wait", "default", *place).returncode == 0
    assert setting(full_lab, "KillWait") == "30 sec"
    assert lab_py("kill-wait", "11", *place).returncode == 0
    assert setting(full_lab, "KillWait") == "11 sec"
    assert lab_py("kill-wait", "soon", *place).returncode == 2
    full_lab.heal()
    assert setting(full_lab, "KillWait") == "5 sec"


def test_private_data_hides_jobs_and_nodes_until_the_lab_is_healed(full_lab: Lab) -> None:
    job_id = running(full_lab)
    eventually(lambda: job_id in accounted(full_lab, "operator"))
    full_lab.private_data("jobs", "nodes")
    assert full_lab.run("squeue", "-h", user="other").stdout == ""
    assert "denied" in full_lab.run("sinfo", user="other", check=False).stderr
    assert (job_id in accounted(full_lab, "other"), job_id in accounted(full_lab, "operator")) == (False, True)
    full_lab.heal()
    assert set(full_lab.run("sinfo", "-h", "-N", "-o", "%N", user="other").stdout.split()) == set(full_lab.names)
    assert job_id in accounted(full_lab, "other")


def accounted(lab: Lab, user: str) -> list[str]:
    return lab.run("sacct", "-X", "-a", "-n", "-o", "JobIDRaw", user=user).stdout.split()


def test_a_site_can_forbid_requeues_and_limit_them(full_lab: Lab) -> None:
    full_lab.job_requeue(0)
    job_id = submit(full_lab, "--begin=now+1hour")
    assert "Requeue=0" in full_lab.run("scontrol", "show", "job", job_id).stdout
    year, month = map(int, full_lab.state.slurm_version.split("."))
    if (year, month) >= (23, 11):
        full_lab.max_batch_requeue(2)
        assert setting(full_lab, "MaxBatchRequeue") == "2"
    else:
        with pytest.raises(LabError, match=r"MaxBatchRequeue is of Slurm 23\.11 and later"):
            full_lab.max_batch_requeue(2)


def test_a_setting_that_slurm_would_not_read_changes_nothing(full_lab: Lab) -> None:
    before = Path(full_lab.conf).read_text()
    for name, value in (("Nonsense", "1"), ("KillWait", "soon"), ("KillWait", "5\nSlurmUser=root"), ("Kill Wait", "5")):
        with pytest.raises(LabError):
            full_lab.configure(**{name: value})
        assert Path(full_lab.conf).read_text() == before
    assert full_lab.node_states()


def test_another_users_jobs_always_wait(full_lab: Lab) -> None:
    def waiting() -> list[str]:
        return full_lab.run("squeue", "-h", "-t", "PENDING", "-o", "%i %u", user="other").stdout.splitlines()

    full_lab.fill(2, seconds=600)
    eventually(lambda: "idle" not in full_lab.node_states().values() and len(waiting()) == 2, seconds=60)
    assert {line.split()[1] for line in waiting()} == {full_lab.users["other"]}
    full_lab.run("scancel", *(line.split()[0] for line in waiting()), user="controller")
    eventually(lambda: len(waiting()) == 2)
    process = full_lab.state.filler
    assert process and full_lab.status()["live"]["daemons"]["filler"]
    assert Path(f"/proc/{process.pid}").owner() == full_lab.users["other"]
    assert lab_py("fill", "--stop", "--dir", str(full_lab.dir)).returncode == 0
    assert not is_alive(process) and waiting() == []


def test_two_full_labs_do_not_disturb_each_other_and_down_leaves_nothing(full_lab: Lab, directory: Path) -> None:
    up = lab_py("up", "--full", "--dir", str(directory), "--nodes", "1", "--json")
    assert up.returncode == 0, up.stderr
    other = Lab(directory)
    job_id = running(other)
    eventually(lambda: job_id in accounted(other, "owner"))
    assert other.users["owner"] not in full_lab.run("sacctmgr", "-nP", "show", "user", user="operator").stdout
    database = other.state.daemons["mariadbd"]
    assert f"pid={database.pid}," not in subprocess.check_output(["ss", "-Htulnp"], text=True), "a unix socket alone"
    assert Path(f"/proc/{database.pid}").owner() == other.users["database"]

    residents = residents_of(directory)
    assert lab_py("down", "--dir", str(directory)).returncode == 0
    assert traces(directory, residents) == []
    assert full_lab.run("sacct", "-X").returncode == 0


def test_accounting_can_be_away(full_lab: Lab) -> None:
    full_lab.stop_slurmdbd()
    assert full_lab.run("sacct", "-X", check=False).returncode != 0
    assert full_lab.node_states(), "slurmctld goes on with what it knows"
    full_lab.start_slurmdbd()
    job_id = submit(full_lab)
    eventually(lambda: job_id in accounted(full_lab, "owner"))
    full_lab.freeze_slurmdbd()
    with pytest.raises(LabError, match="no answer within 2 s"):
        full_lab.run("sacct", timeout=2)
