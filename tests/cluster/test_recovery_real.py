"""The controller on a real Slurm: what the scenarios show on the in-memory one, shown again where it counts."""

import time

import pytest

from controller.models import Action, Incident, NodeHold
from deploy.lab.cluster import Lab
from tests.cluster.lab_world import LabWorld

pytestmark = [pytest.mark.cluster, pytest.mark.django_db]


@pytest.fixture
def world(lab: Lab) -> LabWorld:
    return LabWorld(lab)


def test_a_dead_node_is_held_and_the_job_runs_elsewhere(world: LabWorld) -> None:
    world.start()
    world.kill_node(2)
    killed = time.time()
    world.until(lambda: Incident.objects.filter(state="recovering").exists(), "recovering", ticking=True)
    view = world.view()
    assert view.state.running and view.restarts == 1 and "gpu2" not in view.nodes
    assert view.excluded_nodes == ("gpu2",)
    node = world.slurm.read_node("gpu2")
    assert node is not None and node.state.drain and node.state.down
    hold = NodeHold.objects.get()
    assert node.reason.startswith(f"relume:{hold.token}")
    assert hold.slurm_reason_user == world.lab.users["controller"]
    progress = Action.objects.get(kind="requeue_excluding").progress
    print({k: round(v - killed, 2) for k, v in progress.items() if k.endswith("_at") and v})
