"""A lab leaves nothing behind, however it ended, and names what keeps it from coming up."""

import contextlib
import json
import pwd
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.lab.cluster import Lab
from deploy.lab.state import fresh_directory
from tests.cluster.lab_probes import LAB_PY, SYSTEM_PYTHON, commands, connect, eventually, job_processes, lab_py
from tests.cluster.lab_traces import residents_of, traces
from tests.cluster.training_world import FULL

pytestmark = pytest.mark.cluster


def test_two_labs_do_not_disturb_each_other_and_down_leaves_nothing(lab: Lab, directory: Path) -> None:
    up = lab_py("up", "--dir", str(directory), "--nodes", "2", "--json")
    assert up.returncode == 0, up.stderr
    told = json.loads(up.stdout.splitlines()[-1])
    other = Lab(directory)
    assert told["env"] == other.env and told["management_host"] != lab.management_host
    assert traces(directory), "the search finds a lab that is there"

    other.run("sbatch", "-N2", "-o", "/dev/null", stdin="#!/bin/sh\nsrun sleep 600\n")
    other.kill_node(1)
    assert connect(other, 1) == "silent" and connect(lab, 1) == "open"
    assert set(lab.node_states().values()) == {"idle"}

    residents = residents_of(directory)
    assert len(residents) >= 2, "munged and slurmctld at least"
    down = lab_py("down", "--dir", str(directory))
    assert down.returncode == 0, down.stderr
    assert traces(directory, residents) == []
    assert set(lab.node_states().values()) == {"idle"}


@pytest.mark.parametrize("seed", range(20) if FULL else [11, 22, 33])
def test_down_leaves_nothing_after_up_was_killed(directory: Path, seed: int) -> None:
    moment = random.Random(seed).uniform(0.05, 1.5)
    killed_up(directory, lambda: time.sleep(moment))


@pytest.mark.parametrize("making", ["database/data", "database/data/mysql", "database/socket", "log/slurmctld.out"])
def test_down_leaves_nothing_after_a_full_up_was_killed(directory: Path, making: str) -> None:
    """While the database's files are made, while it starts, while accounting is set up, while Slurm starts."""
    killed_up(directory, lambda: eventually((directory / making).exists), "--full")


def killed_up(directory: Path, wait: Callable[[], None], *options: str) -> None:
    argv = [SYSTEM_PYTHON, LAB_PY, "up", "--dir", str(directory), *options]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as up:
        wait()
        up.kill()
    residents = residents_of(directory)
    if directory.exists():
        down = lab_py("down", "--dir", str(directory))
        assert down.returncode == 0, down.stderr
    assert traces(directory, residents) == []


def test_down_finds_daemons_that_were_never_written_down(directory: Path) -> None:
    """As after a crash between a daemon's start and the note of it."""
    assert lab_py("up", "--dir", str(directory), "--nodes", "2").returncode == 0
    state = Lab(directory).state
    daemons = [*state.daemons.values(), *(node.slurmd for node in state.nodes if node.slurmd)]
    state.daemons.clear()
    for node in state.nodes:
        node.slurmd = None
    state.save()
    assert lab_py("down", "--dir", str(directory)).returncode == 0
    assert traces(directory, daemons) == []


def test_down_ends_an_up_that_still_runs(directory: Path) -> None:
    with subprocess.Popen([SYSTEM_PYTHON, LAB_PY, "up", "--dir", str(directory)], stdout=subprocess.DEVNULL) as up:
        eventually((directory / "slurm.conf").exists)
        assert lab_py("down", "--dir", str(directory)).returncode == 0
        assert up.wait(10) == -signal.SIGKILL
    assert traces(directory) == []


def test_an_interrupted_up_tidies_up_itself(directory: Path) -> None:
    argv = [SYSTEM_PYTHON, LAB_PY, "up", "--dir", str(directory)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as up:
        eventually((directory / "slurm.conf").exists)
        up.terminate()
        assert up.communicate(timeout=30)[1] == "lab.py: interrupted\n"
        assert up.returncode == 130
    assert traces(directory) == []


def test_down_spares_a_container_whose_user_has_the_same_number(directory: Path) -> None:
    assert lab_py("up", "--dir", str(directory), "--nodes", "1").returncode == 0
    uid = pwd.getpwnam(Lab(directory).users["owner"]).pw_uid
    init = f"setpriv --reuid={uid} sleep 60; true"  # the container's first process: with it the rest ends
    inside = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", init]
    with subprocess.Popen(inside) as container:
        eventually(lambda: "sleep 60" in commands(pids_of(uid)))
        assert lab_py("down", "--dir", str(directory)).returncode == 0
        assert "sleep 60" in commands(pids_of(uid))
        container.kill()
    eventually(lambda: "sleep 60" not in commands(pids_of(uid)))


def pids_of(uid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                found.append(int(entry.name))
    return found


def test_down_leaves_a_strange_directory_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert lab_py("down", "--dir", str(tmp_path)).returncode == 1
    assert (tmp_path / "thesis.tex").exists()


def test_a_missing_right_is_named(tmp_path: Path) -> None:
    """Without CAP_NET_ADMIN, and as an ordinary user: one sentence and exit 2, and no lab begun."""
    fresh = fresh_directory()
    up = [SYSTEM_PYTHON, str(LAB_PY), "up", "--dir", str(fresh)]
    without = {
        "CAP_NET_ADMIN": ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", *up],
        "CAP_SYS_ADMIN": ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", *up],
        "CAP_MKNOD": ["setpriv", "--bounding-set=-mknod", "--inh-caps=-mknod", *up],
    }
    for right, argv in without.items():
        told = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
        assert (told.returncode, right in told.stderr) == (2, True), told.stderr
        assert "Traceback" not in told.stderr
    assert not fresh.exists()


def test_loopback_works_and_says_what_it_cannot_show(directory: Path) -> None:
    up = lab_py("up", "--loopback", "--nodes", "2", "--dir", str(directory))
    assert up.returncode == 0, up.stderr
    assert "cut-network" in up.stderr
    lab = Lab(directory)
    lab.run("srun", "-N2", "true")
    lab.run("sbatch", "-N2", "-o", "/dev/null", stdin="#!/bin/sh\nsrun sleep 600\n")
    eventually(lambda: job_processes(lab, 1) and job_processes(lab, 2))
    refused = lab_py("cut-network", "1", "--dir", str(directory))
    assert refused.returncode == 1 and "cannot be cut" in refused.stderr
    assert "refusals" in lab.kill_node(2)
    assert lab.pids(2) == [] and job_processes(lab, 1)
    assert connect(lab, 2) == "refused" and connect(lab, 1) == "open"
    residents = residents_of(directory)
    assert lab_py("down", "--dir", str(directory)).returncode == 0
    assert traces(directory, residents) == []
