"""The controller on a real Slurm: what the scenarios show on the in-memory one, shown again where it counts."""

import threading
import time
from dataclasses import replace

import pytest

from controller import clock
from controller.errors import SlurmTimeout
from controller.models import Action, Attempt, Cluster, Incident, NodeCheck, NodeHold
from controller.slurm import reach
from tests.cluster.lab_world import LabWorld

pytestmark = [pytest.mark.cluster, pytest.mark.django_db]


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
    assert killed < progress["requeued_at"] < progress["released_at"] <= progress["running_at"]


def test_somebody_elses_drain_stays_as_it_is(world: LabWorld) -> None:
    """Without our DOWN the job leaves the dead node only when Slurm gives that node up: COMPLETING until then."""
    world.start()
    drain = ["scontrol", "update", "NodeName=gpu2", "State=DRAIN", "Reason=fan noise"]
    world.lab.run(*drain, user="root")
    world.kill_node(2)
    world.until(lambda: Action.objects.filter(stage="settle").exists(), "the requeue was sent", ticking=True)
    world.run(3)
    node = world.slurm.read_node("gpu2")
    assert node is not None and (node.reason, node.reason_user) == ("fan noise", "root")
    assert node.state.drain and not node.state.down
    assert NodeHold.objects.get().adopted
    assert world.view().state.completing and world.incident().state == "acting"
    world.lab.run("scontrol", "update", "NodeName=gpu2", "State=DOWN", "Reason=fan noise", user="root")
    world.until(lambda: Incident.objects.filter(state="recovering").exists(), "recovering", ticking=True)
    assert world.view().restarts == 1 and "gpu2" not in world.view().nodes


def test_another_users_job_on_a_reachable_node_survives(world: LabWorld) -> None:
    """The node is dark when the decision is made, and answers again when it is carried out."""
    world.start()
    stranger = world.submit("--no-requeue", "--nodelist=gpu2", "-D", "/", user="web")
    world.until(lambda: world.slurm.read_job(stranger).state.running, "the stranger's job runs")  # type: ignore[union-attr]
    world.lab.cut_network(2)
    world.silent.add("gpu2")
    end = time.monotonic() + 30
    while not Incident.objects.exists():
        assert time.monotonic() < end
        world.tick(actions=False)
        time.sleep(0.2)
    world.lab.restore(2)
    world.until(lambda: reach.probe([_door(world, 2)], 1.0) == ["open"], "gpu2 answers")
    world.until(lambda: Incident.objects.filter(state="recovering").exists(), "recovering", ticking=True)
    seen = world.slurm.read_job(stranger)
    assert seen is not None and seen.state.running and seen.restarts == 0
    node = world.slurm.read_node("gpu2")
    assert node is not None and node.state.drain and not node.state.down
    assert world.view().restarts == 1 and "gpu2" not in world.view().nodes


def _door(world: LabWorld, which: int) -> reach.Target:
    node = world.lab.state.node(which)
    return reach.Target(node.management, node.slurmd_port)


def test_nothing_happens_while_slurm_cannot_be_asked(world: LabWorld) -> None:
    world.start()
    world.lab.freeze_slurmctld()
    world.run(20)
    assert "SlurmTimeout" in Cluster.objects.get().view_error
    world.lab.freeze_slurmctld(frozen=False)
    world.until(lambda: Cluster.objects.get().view_error == "", "Slurm answers", ticking=True)
    world.run(3)
    assert Incident.objects.count() == 0 and Action.objects.count() == 0
    assert world.view().state.running and world.view().restarts == 0


def test_nothing_happens_while_the_controller_is_cut_off(world: LabWorld) -> None:
    world.start()
    world.lab.cut_controller()
    world.silent.update(world.lab.names)
    world.run(12)
    world.lab.restore_controller()
    world.silent.clear()
    world.run(3)
    assert NodeCheck.objects.filter(vantage="controller", outcome="timeout").exists()
    assert Incident.objects.count() == 0 and world.view().restarts == 0


def test_a_requeue_that_slurm_answers_late_is_sent_once(world: LabWorld) -> None:
    """slurmctld is stopped at the moment of the requeue: the call times out, and takes effect when it goes on."""
    world.start()
    attempt = Attempt.objects.get()
    attempt.exits = [{"rank": 1, "node": "gpu1", "exit_code": None, "signal": 9, "at": clock.now(), "torn_down": False}]
    attempt.save()
    frozen = FrozenAtRequeue(world)
    world.site = replace(world.site, port=frozen)  # type: ignore[arg-type]
    world.until(lambda: Incident.objects.filter(state="recovering").exists(), "recovering", 90, ticking=True)
    assert frozen.timed_out and frozen.sent == 1
    view = world.view()
    assert view.restarts == 1 and view.state.running and view.excluded_nodes == ()
    world.run(3)
    assert world.view().restarts == 1


class FrozenAtRequeue:
    """The port of a controller whose slurmctld stops just before the requeue arrives, for 12 s."""

    def __init__(self, world: LabWorld) -> None:
        self.world, self.port = world, world.slurm
        self.sent, self.timed_out = 0, False

    def __getattr__(self, name: str) -> object:
        return getattr(self.port, name)

    def requeue_job(self, job_id: str, *, hold: bool) -> None:
        self.sent += 1
        self.world.lab.freeze_slurmctld()
        thaw = threading.Timer(12, self.world.lab.freeze_slurmctld, kwargs={"frozen": False})
        thaw.start()
        try:
            self.port.requeue_job(job_id, hold=hold)
        except SlurmTimeout:
            self.timed_out = True
            raise
        finally:
            thaw.join()
