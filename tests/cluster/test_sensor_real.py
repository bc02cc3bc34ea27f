"""The node sensor on the lab's nodes: a line in a kernel log becomes a sign, and the sign a held node and a requeue."""

import json
import time
from pathlib import Path

import pytest

from deploy.demo.controller import Controller
from deploy.demo.training import Job
from deploy.lab import processes
from deploy.lab.cluster import Lab
from deploy.lab.errors import LabError
from tests.cluster.lab_probes import eventually, lab_py
from tests.cluster.training_world import World

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
# The controller acts on a hard sign within seconds; so long a silence behind a harmless one says that it will not.
NOTHING_S = 8


@pytest.fixture
def world(lab: Lab, controller: Controller) -> World:
    return World(lab, controller)


def test_an_xid_in_a_nodes_kernel_log_takes_the_node_out_and_moves_the_job(world: World) -> None:
    job = world.submit("sensed", epochs=300, steps_per_epoch=100, batch=1, checkpoint_every=50)
    first = world.until(job, lambda d: (d["step"] or 0) >= 5, "the first steps")
    bad, good = first["attempts"][0]["nodes"][::-1]
    start_sensors(world, bad, good)

    world.lab.xid(good, 63)
    assert signs(world, good) == ["xid.63"]
    time.sleep(NOTHING_S)
    quiet = world.detail(job)
    assert quiet is not None and quiet["incidents"] == [] and len(quiet["attempts"]) == 1

    world.lab.xid(bad, 79)
    assert signs(world, bad) == ["xid.79"]
    moved = world.until(job, lambda d: len(d["attempts"]) == 2 and d["attempts"][1]["nodes"], "a second attempt", 60)
    assert bad not in moved["attempts"][1]["nodes"]
    assert slurm_says(world, bad, "Reason").startswith("relume:") and "DRAIN" in slurm_says(world, bad, "State")
    assert "DRAIN" not in slurm_says(world, good, "State")
    assert excluded(world, job) == bad
    assert len(moved["incidents"]) == 1
    world.lab.run("scancel", job.slurm_job_id, user="owner")
    world.until(job, lambda d: d["state"] == "cancelled", "the cancelled state")


def test_a_sensor_ends_with_its_node_or_when_it_is_told(lab: Lab) -> None:
    """Nobody answers at that address: a sensor waits with what it has."""
    url = f"http://{lab.management_host}:9"
    for which in (1, 2):
        lab.start_sensor(which, url, "none")
    eventually(lambda: all(sensor_pids(lab, which) for which in (1, 2)))
    lab.kill_node(1)
    assert sensor_pids(lab, 1) == [] and sensor_pids(lab, 2)
    lab.stop_sensor(2)
    assert sensor_pids(lab, 2) == [] and processes.is_alive(lab.state.node(2).slurmd)
    with pytest.raises(LabError, match="gpu1 is dead"):
        lab.start_sensor(1, url, "none")
    lab.start_sensor(2, url, "none")
    eventually(lambda: sensor_pids(lab, 2))
    lab.heal()
    assert sensor_pids(lab, 2) == [] and not list((lab.dir / "sensor").iterdir())


def test_a_sensor_from_the_command_line(lab: Lab, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("gpu2 none\n")
    place = ("--dir", str(lab.dir))
    url = ("--url", f"http://{lab.management_host}:9")
    assert lab_py("sensor", "2", *url, *place).returncode == 1
    assert lab_py("sensor", "2", "--token-file", str(token), *place).returncode == 2
    assert lab_py("sensor", "2", *url, "--token-file", str(token), *place).returncode == 0
    eventually(lambda: sensor_pids(lab, 2))
    assert lab.status()["live"]["nodes"]["gpu2"]["sensor"]
    assert lab_py("sensor", "2", "--stop", *place).returncode == 0
    assert sensor_pids(lab, 2) == []


def start_sensors(world: World, *nodes: str) -> None:
    told = world.controller.manage("create_sensor_token", ",".join(nodes))
    tokens = dict(line.split() for line in told.strip().splitlines())
    for node in nodes:
        world.lab.start_sensor(node, world.controller.url, tokens[node])


def signs(world: World, node: str) -> list[str]:
    """Codes of this node's sensor, once there are any."""
    rows = f"Sign.objects.filter(origin='sensor', sensor__node='{node}', node='{node}')"
    found: list[str] = []
    for _ in range(20):
        found = json.loads(world.ask_database(f"__import__('json').dumps([s.code for s in {rows}])"))
        if found:
            break
        time.sleep(0.5)
    return found


def slurm_says(world: World, node: str, field: str) -> str:
    told = world.lab.run("scontrol", "show", "node", node, "-o", user="controller").stdout
    return next((part.split("=", 1)[1] for part in told.split() if part.startswith(f"{field}=")), "")


def excluded(world: World, job: Job) -> str:
    told = world.lab.run("scontrol", "show", "job", job.slurm_job_id, "-o", user="controller").stdout
    return next(part.split("=", 1)[1] for part in told.split() if part.startswith("ExcNodeList="))


def sensor_pids(lab: Lab, which: int) -> list[int]:
    """By their command lines, whatever the lab has written down."""
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in lab.pids(which)}
    return [pid for pid, words in lines.items() if b"worker_hooks.sensor" in words]
