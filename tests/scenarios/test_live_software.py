"""A live job's own signs of faults that are no hardware: the program's own and the storage's. Nobody's node pays."""

from typing import Any

import pytest

from controller.decision.policy import Budget
from controller.models import Incident
from tests.scenarios.conftest import blamed_nobody, die, excluded, held, place_ranks
from tests.scenarios.world import World

pytestmark = [pytest.mark.db, pytest.mark.scenario]


# --- the program's own fault --------------------------------------------------------------------------------------


def traceback_everywhere(world: World) -> None:
    for rank, node in ((0, "gpu1"), (1, "gpu1"), (2, "gpu2"), (3, "gpu2")):
        text = "mat1 and mat2 shapes cannot be multiplied (8x512 and 768x512)"
        world.job_sign(
            node, "python.exception", rank, raw=f"RuntimeError: {text}", attrs={"type": "RuntimeError", "text": text}
        )
        world.job_sign(node, "nccl.remote_error", rank, layer="library")
        world.job_sign(node, "nccl.peer_closed", rank, layer="library", attrs={"peer": "10.77.0.2"})
    die(world, (0, "gpu1"), (1, "gpu1"), (2, "gpu2"), (3, "gpu2"), signal=None, exit_code=1)


def test_a_traceback_on_every_rank_is_the_users_inside_nccl_lines(world: World) -> None:
    world.set_policy(budget=Budget(user=1))
    world.start()
    place_ranks()
    traceback_everywhere(world)
    world.run(14)
    incident = world.incident()
    assert (incident.cause, incident.budget, incident.suspects) == ("user_error", "user", [])
    assert incident.assessment["verdict"] == "user_code" and incident.ranks == [0, 1, 2, 3]
    assert blamed_nobody(world) and world.slurm_job().restarts == 1


def test_without_a_budget_for_it_a_person_is_asked(world: World) -> None:
    world.start()
    traceback_everywhere(world)
    world.run(14)
    assert (world.incident().cause, world.incident().state) == ("user_error", "awaiting_operator")
    assert blamed_nobody(world) and world.slurm_job().restarts == 0


def test_ranks_that_abort_after_a_traceback_are_still_the_users(world: World) -> None:
    world.start()
    traceback_everywhere(world)
    die(world, (0, "gpu1"), (1, "gpu1"), (2, "gpu2"), (3, "gpu2"), signal=6)
    world.run(14)
    assert (world.incident().cause, world.incident().state) == ("user_error", "awaiting_operator")
    assert blamed_nobody(world)


@pytest.mark.parametrize("how", [{"signal": 6}, {"signal": None, "exit_code": 1}])
def test_gpu_memory_that_ran_out_asks_and_requeues_nothing(world: World, how: dict[str, Any]) -> None:
    world.set_policy(budget=Budget(user=5))
    world.start()
    raw = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
    world.job_sign("gpu2", "cuda.out_of_memory", 2, raw=raw, attrs={"text": raw})
    die(world, (2, "gpu2"), **how)
    world.run(14)
    incident = world.incident()
    assert (incident.cause, incident.state, incident.ranks) == ("gpu_oom", "awaiting_operator", [2])
    assert "smaller batch" in incident.ask and world.job().state == "stopped"
    assert world.effects() == [] and world.slurm_job().restarts == 0


# --- storage ------------------------------------------------------------------------------------------------------


def storage_fails(world: World, *places: tuple[int, str]) -> None:
    for rank, node in places:
        raw = "OSError: [Errno 116] Stale file handle: '/data/shard-3'"
        world.job_sign(node, "storage.stale", rank, raw=raw, attrs={"errno": 116, "path": "/data/shard-3"})
    die(world, *places, signal=None, exit_code=1)


def test_storage_that_fails_on_two_nodes_is_waited_for_and_nobody_is_kept_away(world: World) -> None:
    world.start()
    storage_fails(world, (0, "gpu1"), (2, "gpu2"))
    world.run(100)
    incident = world.incident()
    assert (incident.cause, incident.budget, incident.suspects) == ("data_or_storage", "infrastructure", [])
    assert world.slurm_job().restarts == 0, "the storage needs time"
    world.run(240)
    assert Incident.objects.count() == 1 and blamed_nobody(world)
    assert (world.slurm_job().base, world.slurm_job().restarts) == ("RUNNING", 1)


def test_storage_that_fails_on_one_node_keeps_the_job_away_from_it(world: World) -> None:
    world.start()
    storage_fails(world, (2, "gpu2"), (3, "gpu2"))
    world.run(14)
    incident = world.incident()
    assert (incident.cause, incident.suspects, incident.assessment["withheld"]) == ("data_or_storage", ["gpu2"], [])
    assert (held(), excluded(), world.slurm_job().excluded) == ([], ["gpu2"], ["gpu2"])
    assert world.slurm_job().restarts == 1
