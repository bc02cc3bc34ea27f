"""Two training jobs on one node: a fault of a GPU hits whoever holds it, by the word of each job's own agents."""

from typing import Any

import pytest

from controller.clock import aware
from controller.ingest.receive import receive
from controller.models import AgentReport, Attempt, Cluster, Incident, NodeHold, TrainingJob
from tests.builders import RUN_ID, message
from tests.scenarios.world import World
from worker_hooks.protocol.messages import decode_message

pytestmark = [pytest.mark.db, pytest.mark.scenario]
OTHER = "tj-0000000000bb"
A, B = "GPU-0aaaaaaa-1111-2222-3333-000000000000", "GPU-1bbbbbbb-1111-2222-3333-000000000001"
SLICES = ("MIG-2ccccccc-1111-2222-3333-000000000002", "MIG-3ddddddd-1111-2222-3333-000000000003")
NODES_GPUS = [{"uuid": A, "pci": "0000:1b:00"}, {"uuid": B, "pci": "0000:9b:00"}]


class SharedNode(World):
    """Our job on gpu1 and gpu2, half of each, and another one on the other half of gpu2."""

    def begin(self) -> None:
        self.auto_resume = False
        self.start(cpus_per_node=4)
        ours, self.job_id = self.job_id, self.slurm.submit(num_nodes=1, cpus_per_node=4, excluded=["gpu1"], user="eve")
        self.slurm.tick()
        row = TrainingJob.objects.create(
            run_id=OTHER,
            name="other",
            owner="eve",
            cluster=Cluster.objects.get(name="fake"),
            slurm_job_id=self.job_id,
            state_at=aware(self.now),
            created_at=aware(self.now),
        )
        self.attempt(row, 1, 0, step=100, first_new_step_at=aware(self.now))
        self.job_id = ours
        self.run(6)
        assert self.stand(OTHER) == self.stand(RUN_ID) == ("training", "RUNNING", 0)

    def agents_speak(self) -> None:
        for attempt in Attempt.objects.select_related("training_job"):
            with self.slurm.world() as slurm:
                job = slurm.jobs[attempt.training_job.slurm_job_id]
                speaks = job.base == "RUNNING" and not job.completing and job.restarts == attempt.restart_count
            if speaks:
                AgentReport.objects.filter(attempt=attempt).update(received_at=aware(self.now), sent_at=aware(self.now))

    def tell_gpus(self, run_id: str, *gpus: str) -> None:
        """A message of that job's agent on gpu2."""
        job = TrainingJob.objects.get(run_id=run_id)
        at: dict[str, Any] = {"run_id": run_id, "node": "gpu2", "sent_at": self.now + 0.5, "ranks": []}
        at["job"] = {"slurm_job_id": job.slurm_job_id, "user": job.owner, "nodes": "gpu2"}
        receive(job, decode_message(message(**at, agent={"gpus": list(gpus)})), self.now)

    def fault(self, **attrs: Any) -> None:
        xid = {"code": "xid.79", "raw": "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus"}
        self.sense("gpu2", {**xid, "attrs": {"number": 79, **attrs}}, gpus=NODES_GPUS)
        self.run(14)

    def stand(self, run_id: str) -> tuple[str, str, int]:
        row = TrainingJob.objects.get(run_id=run_id)
        with self.slurm.world() as slurm:
            job = slurm.jobs[row.slurm_job_id]
            return row.state, job.base, job.restarts

    def hit(self) -> list[str]:
        assert list(NodeHold.objects.values_list("node__name", flat=True)) == ["gpu2"], "held once, whoever was hit"
        for incident in Incident.objects.all():
            assert (incident.cause, incident.suspects) == ("node_sign", ["gpu2"])
        return sorted(Incident.objects.values_list("training_job__run_id", flat=True))


@pytest.fixture
def shared(db: None) -> SharedNode:
    world = SharedNode()
    world.begin()
    return world


@pytest.mark.parametrize("attrs", [{"pci": "0000:9b:00"}, {"gpu_uuid": B}, {"pci": "0000:9b:00", "gpu_uuid": B}])
def test_only_the_holder_of_the_gpu_is_hit(shared: SharedNode, attrs: dict[str, str]) -> None:
    shared.tell_gpus(RUN_ID, A)
    shared.tell_gpus(OTHER, B)
    shared.fault(**attrs)
    assert shared.hit() == [OTHER]
    assert shared.stand(RUN_ID) == ("training", "RUNNING", 0), "the neighbour goes on beside the drain"
    assert shared.stand(OTHER)[2] == 1


def test_and_the_other_way_round(shared: SharedNode) -> None:
    shared.tell_gpus(RUN_ID, B)
    shared.tell_gpus(OTHER, A)
    shared.fault(pci="0000:9b:00")
    assert shared.hit() == [RUN_ID] and shared.stand(OTHER) == ("training", "RUNNING", 0)
    assert shared.slurm_job().excluded == ["gpu2"] and shared.slurm_job().restarts == 1


def test_a_job_whose_gpus_are_unknown_may_be_the_one(shared: SharedNode) -> None:
    shared.fault(pci="0000:9b:00")
    assert shared.hit() == [OTHER, RUN_ID]


def test_one_that_told_is_spared_and_one_that_did_not_is_hit(shared: SharedNode) -> None:
    shared.tell_gpus(OTHER, A)
    shared.fault(pci="0000:9b:00")
    assert shared.hit() == [RUN_ID] and shared.stand(OTHER) == ("training", "RUNNING", 0)


def test_slices_of_one_gpu_are_hit_together(shared: SharedNode) -> None:
    shared.tell_gpus(RUN_ID, B, SLICES[0])
    shared.tell_gpus(OTHER, B, SLICES[1])
    shared.fault(pci="0000:9b:00")
    assert shared.hit() == [OTHER, RUN_ID]


def test_slices_of_another_gpu_are_not(shared: SharedNode) -> None:
    shared.tell_gpus(RUN_ID, A, SLICES[0])
    shared.tell_gpus(OTHER, f"MIG-{B}/5/0")
    shared.fault(pci="0000:9b:00")
    assert shared.hit() == [OTHER] and shared.stand(RUN_ID) == ("training", "RUNNING", 0)


def test_an_address_that_nobody_can_place_hits_both(shared: SharedNode) -> None:
    shared.tell_gpus(RUN_ID, A)
    shared.tell_gpus(OTHER, B)
    shared.fault(pci="0000:c4:00")
    assert shared.hit() == [OTHER, RUN_ID]
