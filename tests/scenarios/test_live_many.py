"""Many ranks at once, end to end: a crash of all is nobody's fault, and a hang names ranks and holds nobody."""

from dataclasses import replace

import pytest

from controller.models import Attempt, Incident
from tests.scenarios.conftest import ECC, blamed_nobody, die, place_ranks
from tests.scenarios.test_stalls import QUICK, Ranks
from tests.scenarios.world import World

pytestmark = [pytest.mark.db, pytest.mark.scenario]


@pytest.mark.parametrize("trusted", [False, True])
def test_77_nodes_that_crash_at_once_are_nobodys_fault(world: World, trusted: bool) -> None:
    world.set_policy(trust_job_evidence=trusted)
    world.add_nodes(80)
    world.start(num_nodes=77)
    nodes = world.slurm_job().nodes
    place_ranks(1)
    for rank, node in enumerate(nodes):
        peer = nodes[(rank + 1) % 77]
        raw = f"NCCL WARN socketProgress: Connection closed by remote peer {peer}<41234>"
        world.job_sign(node, "nccl.peer_closed", rank, layer="library", raw=raw, attrs={"peer": peer, "host": node})
        world.job_sign(node, "nccl.remote_error", rank, layer="library")
    die(world, *enumerate(nodes))
    world.run(14)
    assert Incident.objects.count() == 1 and blamed_nobody(world)
    assert (world.slurm_job().base, world.slurm_job().restarts) == ("RUNNING", 1)


@pytest.mark.parametrize("code", ["cuda.ecc", "nccl.ib_completion"])
def test_nor_where_all_of_them_accuse_hardware(world: World, code: str) -> None:
    world.set_policy(trust_job_evidence=True)
    world.add_nodes(80)
    world.start(num_nodes=77)
    nodes = world.slurm_job().nodes
    place_ranks(1)
    for rank, node in enumerate(nodes):
        attrs = {"status": 12, "vendor_error": 129, "peer": nodes[(rank + 1) % 77]} if "ib" in code else {"text": ECC}
        world.job_sign(node, code, rank, attrs=attrs)
    die(world, *enumerate(nodes))
    world.run(14)
    assert Incident.objects.count() == 1 and blamed_nobody(world)
    assert world.slurm_job().restarts == 1


def flight_recorders(world: World) -> None:
    for rank in range(4):
        late = rank == 2
        attrs = {"group": "0", "group_name": "default_pg", "size": 4, "members": "0-3", "op": "nccl:all_reduce"}
        attrs |= {"enqueued": 41 if late else 42, "started": 41, "completed": 41}
        attrs |= {} if late else {"waiting": 1, "state": "scheduled", "sequence": 42, "sizes": "[[1024]]"}
        world.job_sign("gpu1" if rank < 2 else "gpu2", "collective.state", rank, layer="library", attrs=attrs)
    for rank in (0, 1, 3):
        attrs = {"sequence": 42, "op": "ALLREDUCE", "group": "0", "timeout_ms": 600000}
        world.job_sign("gpu1" if rank < 2 else "gpu2", "nccl.watchdog_timeout", rank, layer="library", attrs=attrs)


def test_dumps_of_a_hang_name_the_rank_that_did_not_come_and_hold_nobody(world: World) -> None:
    world.start()
    place_ranks()
    flight_recorders(world)
    die(world, (0, "gpu1"), (1, "gpu1"), (3, "gpu2"))
    world.run(14)
    incident = world.incident()
    assert (incident.cause, incident.ranks, incident.budget) == ("hang", [2], "infrastructure")
    assert blamed_nobody(world) and world.slurm_job().restarts == 1
    assert Attempt.objects.get(generation=1).outcome == "hung"


def test_dumps_beside_a_silent_stall_name_it_too(world: World) -> None:
    world.policy = replace(world.policy, stall=QUICK)
    world.start()
    ranks = Ranks(world)
    flight_recorders(world)
    ranks.run(40)
    incident = world.incident()
    assert (incident.cause, incident.ranks, incident.budget) == ("hang", [2], "infrastructure")
    assert blamed_nobody(world) and world.slurm_job().restarts == 1
