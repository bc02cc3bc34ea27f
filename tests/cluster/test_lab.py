"""The lab itself: it is a real cluster, its faults are what they say, and it leaves nothing behind."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import pwd
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from deploy.lab import making
from deploy.lab.cluster import Lab
from deploy.lab.errors import LabError
from deploy.lab.processes import is_alive, start_of
from deploy.lab.state import Process, fresh_directory, lab_id

pytestmark = pytest.mark.cluster

LAB_PY = Path(__file__).parents[2] / "deploy" / "lab" / "lab.py"
SYSTEM_PYTHON = "/usr/bin/python3"
SLEEPERS = """#!/bin/sh
srun sh -c 'echo "$(hostname) $(id -un) $SLURM_PROCID" >>"$HOME/seen"; exec sleep 600'
"""


def eventually(check: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.1)


def connect(lab: Lab, which: int, *, training: bool = False, on: int | None = None) -> str:
    """What a TCP connection to a node's slurmd meets, seen from the controller's host or from another node."""
    node = lab.state.node(which)
    address = node.training if training else node.management
    if on is not None:
        probe = (
            f"import socket\ntry: socket.create_connection(('{address}', {node.slurmd_port}), 1).close(); print('open')"
            "\nexcept ConnectionRefusedError: print('refused')\nexcept OSError: print('silent')"
        )
        return lab.run(SYSTEM_PYTHON, "-c", probe, on=on).stdout.strip()
    try:
        socket.create_connection((address, node.slurmd_port), 1).close()
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silent"
    return "open"


def job_processes(lab: Lab, which: int) -> list[int]:
    owner = pwd.getpwnam(lab.users["owner"]).pw_uid
    return [pid for pid in lab.pids(which) if Path(f"/proc/{pid}").stat().st_uid == owner]


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
    with pytest.raises(LabError, match=r"gpu2 drained\n(.*\n)*.*slurmd-gpu2\.log:\n.*slurmd"):
        making.wait_until_idle(lab.state, seconds=0.5)
    lab.stop_slurmctld()
    with pytest.raises(LabError, match=r"slurmctld ended\n.*slurmctld\.log:\n"):
        making.wait_until_idle(lab.state, seconds=0.5)


# What stays behind. Everything a lab makes carries its id or its directory, so other labs do not disturb the search.


def traces(directory: Path, residents: Sequence[Process] = ()) -> list[str]:
    the_id = lab_id(directory)
    marks = (str(directory), the_id)
    found = [f"directory {directory}"] if directory.exists() else []
    listings = (["ip", "netns", "list"], ["ip", "-o", "link"], ["cat", "/proc/self/mountinfo"])
    for argv in listings:
        text = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=10).stdout
        found += [line for line in text.splitlines() if any(mark in line for mark in marks)]
    found += [user.pw_name for user in pwd.getpwall() if the_id in user.pw_name]
    found += [group.gr_name for group in grp.getgrall() if the_id in group.gr_name]
    found += [f"{process} lives" for process in residents if is_alive(process)]
    return found + list(process_traces(str(directory).encode()))


def residents_of(directory: Path) -> list[Process]:
    """Processes of the lab's users. Noted before `down`: afterwards the next lab may have been given their numbers."""
    uids = {user.pw_uid for user in pwd.getpwall() if lab_id(directory) in user.pw_name}
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid in uids:
                found.append(start_of(int(entry.name)))
    return found


def process_traces(mark: bytes) -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = [(entry / name).read_bytes() for name in ("cmdline", "environ")]
        except OSError:
            continue
        if any(mark in word for word in words):
            yield f"process {entry.name} {words[0]!r}"


def lab_py(*argv: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SYSTEM_PYTHON, LAB_PY, *argv], capture_output=True, text=True, timeout=timeout, cwd="/", check=False
    )


@pytest.fixture
def directory() -> Iterator[Path]:
    """A place for one more lab, removed if the test did not get to it."""
    chosen = fresh_directory()
    yield chosen
    if chosen.exists():
        lab_py("down", "--dir", str(chosen))


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


@pytest.mark.parametrize("seed", [11, 22, 33])
def test_down_leaves_nothing_after_up_was_killed(directory: Path, seed: int) -> None:
    moment = random.Random(seed).uniform(0.05, 1.5)
    up = subprocess.Popen([SYSTEM_PYTHON, LAB_PY, "up", "--dir", str(directory)], stdout=subprocess.DEVNULL)
    time.sleep(moment)
    up.send_signal(signal.SIGKILL)
    up.wait()
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
        eventually(lambda: "sleep\x0060" in all_commands(of=uid))
        assert lab_py("down", "--dir", str(directory)).returncode == 0
        assert "sleep\x0060" in all_commands(of=uid)
        container.kill()
    eventually(lambda: "sleep\x0060" not in all_commands(of=uid))


def all_commands(*, of: int) -> str:
    """The command lines of a user's processes."""
    texts = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == of:
                texts.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return "\n".join(texts)


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
