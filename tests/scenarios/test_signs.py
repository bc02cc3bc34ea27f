"""Signs of sensors and jobs, end to end: what holds a node, what only tells, and what nobody is blamed for."""

from typing import Any

import pytest

from controller.clock import aware
from controller.models import AgentReport, Attempt, Evidence, Incident, NodeHold, Sign, TrainingJob
from tests.scenarios.world import START, World

pytestmark = [pytest.mark.db, pytest.mark.scenario]

XID_79 = {
    "code": "xid.79",
    "raw": "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus",
    "attrs": {"number": 79},
}
XID_63 = {"code": "xid.63", "raw": "NVRM: Xid (PCI:0000:9b:00): 63, row remap", "attrs": {"number": 63}}


def kill_rank(world: World, node: str = "gpu2", rank: int = 2) -> None:
    exits = [{"rank": rank, "node": node, "exit_code": None, "signal": 6, "at": world.now, "torn_down": False}]
    Attempt.objects.update(exits=exits)


def held() -> list[str]:
    return sorted(NodeHold.objects.values_list("node__name", flat=True))


def test_a_fatal_xid_of_the_sensor_holds_excludes_and_requeues(world: World) -> None:
    world.start()
    assert world.sense("gpu2", XID_79).wake
    world.run(14)
    incident = world.incident()
    assert (incident.budget, incident.suspects, held()) == ("infrastructure", ["gpu2"], ["gpu2"])
    assert world.slurm_job().excluded == ["gpu2"] and world.slurm_job().restarts == 1
    proof = Evidence.objects.get(incident=incident, code="xid.79")
    assert (proof.origin, proof.node, proof.stance, proof.late) == ("sensor", "gpu2", "accuses", False)
    assert proof.ref == f"sign:{Sign.objects.get().pk}"


def test_the_same_line_in_the_jobs_log_alone_holds_nothing(world: World) -> None:
    world.start()
    world.job_sign("gpu2", "xid.79", layer="kernel", attrs={"number": 79})
    world.run(10)
    assert held() == []


def test_a_row_remap_is_no_reason_to_do_anything(world: World) -> None:
    world.start()
    world.sense("gpu2", XID_63)
    world.run(10)
    assert Incident.objects.count() == 0 and world.slurm_job().restarts == 0


@pytest.mark.parametrize(
    "sign",
    [
        {"code": "gpu.missing", "layer": "gpu", "source": "nvml", "attrs": {"expected": 8, "found": 8}},
        {"code": "xid.145", "attrs": {"number": 145, "fatal": False}},
        {"code": "xid.145", "attrs": {"number": 145}},
        {"code": "sxid.20034", "attrs": {"number": 20034}},
        {"code": "xid.154", "attrs": {"number": 154, "recovery": "None"}},
    ],
    ids=["all there", "mended", "no word of fatal", "switch, no word of fatal", "nothing to do"],
)
def test_what_the_line_itself_takes_back_holds_nothing(world: World, sign: dict[str, Any]) -> None:
    world.start()
    world.sense("gpu2", sign)
    world.run(10)
    assert Incident.objects.count() == 0 and held() == []


@pytest.mark.parametrize(
    "sign",
    [
        {"code": "gpu.missing", "layer": "gpu", "source": "nvml", "attrs": {"expected": 8, "found": 7}},
        {"code": "sxid.20034", "attrs": {"number": 20034, "fatal": True}},
        {"code": "xid.154", "attrs": {"number": 154, "recovery": "Node Reboot Required"}},
    ],
    ids=["one is gone", "fatal", "reboot"],
)
def test_what_the_line_itself_makes_hard_holds(world: World, sign: dict[str, Any]) -> None:
    world.start()
    world.sense("gpu2", sign)
    world.run(14)
    assert held() == ["gpu2"] and world.slurm_job().restarts == 1


def test_the_same_on_three_nodes_at_once_holds_none_of_them(world: World) -> None:
    world.add_nodes(8)
    world.start(num_nodes=4)
    world.sense("gpu1", XID_79)
    world.sense("gpu2", XID_79)
    world.run(1)
    world.sense("gpu3", XID_79)  # its sensor's round was a moment later
    world.run(14)
    assert world.incident().cause == "many_nodes" and held() == []
    assert world.slurm_job().excluded == ["gpu1", "gpu2", "gpu3"]


def test_a_readers_own_failure_is_nothing_against_its_node(world: World) -> None:
    world.start()
    failed = {"code": "sensor.reader_failed", "layer": "node", "source": "kernel", "attrs": {"reader": "kernel"}}
    world.sense("gpu2", failed, readers={"kernel": "permission denied", "nvml": "absent"})
    world.run(10)
    assert Incident.objects.count() == 0 and held() == []


def test_a_late_xid_holds_the_node_once_and_stands_with_the_incident(world: World) -> None:
    world.start()
    with world.slurm.world() as slurm:
        slurm.jobs[world.job_id].excluded = ["gpu2"]  # it comes back elsewhere
    kill_rank(world)
    fault = world.now
    world.run(12)
    incident = world.incident()
    assert held() == [], "a process died: nothing is said against the node yet"
    assert "gpu2" not in world.slurm_job().nodes
    world.sense("gpu2", {**XID_79, "at": fault})
    world.run(10)
    assert held() == ["gpu2"] and NodeHold.objects.get().incident == incident
    late = Evidence.objects.get(incident=incident, code="xid.79")
    assert late.late and late.number == Evidence.objects.filter(incident=incident).count()
    assert Incident.objects.count() == 1 and world.slurm_job().restarts == 1
    world.run(10)
    assert NodeHold.objects.count() == 1 and Evidence.objects.filter(code="xid.79").count() == 1


def test_a_late_xid_of_a_node_that_the_job_came_back_to_is_a_new_incident(world: World) -> None:
    world.start()
    kill_rank(world)
    fault = world.now
    world.run(12)
    assert "gpu2" in world.slurm_job().nodes and held() == []
    world.sense("gpu2", {**XID_79, "at": fault})
    world.run(14)
    assert held() == ["gpu2"] and "gpu2" not in world.slurm_job().nodes
    assert Incident.objects.count() == 2 and NodeHold.objects.count() == 1


def test_a_node_that_a_person_returned_is_not_held_again_for_the_same_sign(world: World) -> None:
    world.start()
    world.sense("gpu2", XID_79)
    world.run(14)
    NodeHold.objects.update(state="released", ended_at=aware(world.now))
    world.slurm.resume_node("gpu2")
    world.run(10)
    assert NodeHold.objects.count() == 1 and Incident.objects.count() == 1


def test_a_forged_message_is_refused_and_changes_nothing(world: World) -> None:
    from controller.api.answers import Refused
    from controller.ingest.sense import receive_sense
    from controller.models import NodeSensor
    from worker_hooks.protocol.sense import SenseMessage

    world.start()
    world.sense("gpu1")
    message = SenseMessage("gpu2", "s1", world.now, "1", START)
    with pytest.raises(Refused) as refused:
        receive_sense(NodeSensor.objects.get(node="gpu1"), message, world.now)
    assert refused.value.status == 403 and not NodeSensor.objects.filter(node="gpu2").exists()


def test_on_a_shared_node_the_xid_is_that_of_whoever_holds_the_gpu(world: World) -> None:
    world.start()
    ours = TrainingJob.objects.get()
    AgentReport.objects.filter(node="gpu2").update(gpus=["GPU-a"])
    gpus = [{"uuid": "GPU-a", "pci": "0000:1b:00"}, {"uuid": "GPU-b", "pci": "0000:9b:00"}]
    theirs = {**XID_79, "attrs": {"number": 79, "pci": "0000:9b:00"}}
    world.sense("gpu2", theirs, gpus=gpus)
    world.run(10)
    assert Incident.objects.count() == 0, "the neighbour's GPU"
    AgentReport.objects.filter(node="gpu2").update(gpus=["GPU-b"])
    world.run(10)
    assert Incident.objects.get().training_job == ours and held() == ["gpu2"]


def test_signs_are_forgotten_but_not_what_an_incident_rests_on(world: World) -> None:
    from dataclasses import replace

    world.start()
    world.sense("gpu2", XID_79)
    world.run(14)
    world.set_policy(limits=replace(world.policy.limits, sign_memory_s=30.0))
    world.run(100)
    assert Sign.objects.count() == 0 and Evidence.objects.filter(code="xid.79").count() == 1
