"""A slow rank beside a fault: named where the evidence is shown, blamed by nobody, and never a fault by itself."""

from dataclasses import replace
from typing import Any

import pytest

from controller.ingest.receive import receive
from controller.models import Exclusion, Incident, NodeHold, TrainingJob
from tests.builders import message, record
from tests.scenarios.test_causes import kill_rank
from tests.scenarios.test_stalls import QUICK, Ranks
from tests.scenarios.world import World
from worker_hooks.protocol.messages import decode_message

pytestmark = [pytest.mark.scenario, pytest.mark.django_db]
RANKS = 8


@pytest.fixture
def world(world: World) -> World:
    world.policy = replace(world.policy, stall=QUICK)
    return world


def tell_work(world: World, slow: dict[int, float]) -> None:
    """Two ranks on each of four nodes, in two pipeline stages of four ranks; one message of each agent."""
    job = TrainingJob.objects.get()
    for index, node in enumerate(world.slurm_job().nodes):
        records: list[dict[str, Any]] = []
        for rank in (2 * index, 2 * index + 1):
            records.append(record(len(records) + 1, "run_facts", world.now, rank=rank, role=f"stage {rank // 4}"))
            steps = list(range(70, 100))
            own = [(0.4 + 0.002 * (step % 3)) * slow.get(rank, 1.0) for step in steps]
            body = {"rank": rank, "name": "compute_s", "steps": steps, "times": [world.now] * 30, "values": own}
            records.append(record(len(records) + 1, "metrics", world.now, **body))
        at = {"node": node, "sent_at": world.now, "job": {"slurm_job_id": world.job_id}, "ranks": []}
        receive(job, decode_message(message(*records, **at)), world.now)


def stragglers(incident: Incident) -> list[tuple[int | None, str]]:
    found = incident.evidence.filter(code="progress.straggler").order_by("rank")
    return [(piece.rank, piece.stance) for piece in found]


def blamed_nobody(incident: Incident) -> bool:
    return incident.suspects == [] and not NodeHold.objects.exists() and not Exclusion.objects.exists()


class Stalled(Ranks):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.since = [world.now] * RANKS


def test_a_slow_rank_is_named_in_the_incident_of_a_stall(world: World) -> None:
    world.start(num_nodes=4)
    tell_work(world, {5: 2.0})
    Stalled(world).run(40)
    incident = world.incident()
    assert incident.cause == "hang" and stragglers(incident) == [(5, "context")]
    assert "rank 5 (stage 1) takes 2 times as long" in incident.evidence.get(code="progress.straggler").raw
    assert blamed_nobody(incident) and world.slurm_job().restarts == 1


def test_and_in_that_of_another_fault(world: World) -> None:
    world.start(num_nodes=4)
    tell_work(world, {5: 2.0})
    kill_rank(world)
    world.run(12)
    incident = world.incident()
    assert incident.cause == "process_died" and stragglers(incident) == [(5, "context")] and blamed_nobody(incident)


def test_a_slow_stage_is_nobody(world: World) -> None:
    world.start(num_nodes=4)
    tell_work(world, dict.fromkeys(range(4, 8), 2.5))
    Stalled(world).run(40)
    assert world.incident().cause == "hang" and stragglers(world.incident()) == []


def test_a_slow_rank_alone_opens_nothing(world: World) -> None:
    world.start(num_nodes=4)
    tell_work(world, {5: 3.0})
    world.run(60)
    assert Incident.objects.count() == 0 and world.effects() == []
