"""Other people's wishes: cancels, holds, drains, jobs and --no-requeue are neither overwritten nor undone."""

import pytest

from controller.models import Incident, NodeHold
from tests.scenarios.world import World

pytestmark = [pytest.mark.scenario, pytest.mark.django_db]


def test_a_user_cancels_while_the_incident_is_acting(world: World) -> None:
    world.start()
    world.kill_host("gpu2")
    while not Incident.objects.exists():
        world.tick(actions=False)
    world.slurm.cancel_job(world.job_id)
    world.run(10)
    assert world.job().state == "cancelled"
    assert world.incident().state == "abandoned"
    assert world.slurm_job().base == "CANCELLED"
    assert world.effects("hold", "requeuehold", "release", "exclude") == []


def test_a_hold_by_the_owner_is_never_released(world: World) -> None:
    world.start()
    world.kill_host("gpu2")
    while not Incident.objects.exists():
        world.tick(actions=False)
    with world.slurm.world() as slurm:
        slurm.jobs[world.job_id].held = "JobHeldUser"
    world.run(15)
    job = world.slurm_job()
    assert (job.base, job.held, job.restarts) == ("PENDING", "JobHeldUser", 1)
    assert world.effects("release") == []
    assert job.excluded == ["gpu2"], "what helps the owner later is done"
    assert world.incident().state == "awaiting_operator" and "held" in world.incident().ask
    world.slurm.release_job(world.job_id)
    world.slurm.set_start_now(world.job_id)
    world.run(5)
    world.resume_trains()
    world.run(3)
    assert (world.incident().state, world.job().state) == ("resolved", "training")


def test_a_hold_that_comes_after_ours_is_not_released(world: World) -> None:
    world.start()
    world.kill_host("gpu2")
    seen = []

    def hold_after_ours(seconds: float) -> None:
        world.now += seconds
        if "hold" in [e.kind for e in world.slurm.effects()] and not seen:
            with world.slurm.world() as slurm:
                slurm.jobs[world.job_id].held = "JobHeldUser"
            seen.append(world.now)

    world.advance = hold_after_ours  # type: ignore[method-assign]
    world.run(15)
    assert seen and world.slurm_job().held == "JobHeldUser"
    assert world.effects("release") == []


def test_a_job_that_forbids_requeueing(world: World) -> None:
    world.start(requeue=False)
    world.kill_host("gpu2")
    world.run(15)
    assert world.incident().state == "awaiting_operator" and "--no-requeue" in world.incident().ask
    assert world.effects() == [] and world.job().state == "stopped"
    assert NodeHold.objects.count() == 0


def test_somebody_elses_drain_is_adopted(world: World) -> None:
    world.start()
    world.slurm.drain_node("gpu2", "fan noise, Eve looks at it")
    world.run(3)
    world.kill_host("gpu2")
    world.run(15)
    node = world.slurm.read_node("gpu2")
    assert node.reason == "fan noise, Eve looks at it"
    assert world.effects("drain", "down", "resume") == ["drain gpu2"], "Eve's own"
    hold = NodeHold.objects.get()
    assert hold.adopted and hold.slurm_reason == "fan noise, Eve looks at it"
    job = world.slurm_job()
    assert (job.restarts, job.excluded, job.base) == (1, ["gpu2"], "RUNNING")


def test_another_users_job_on_a_reachable_node_survives(world: World) -> None:
    """Decided while the host was dark; it answers again before DOWN is written."""
    world.start(cpus_per_node=4)
    stranger = world.slurm.submit(
        user="bob", num_nodes=1, cpus_per_node=4, requeue=False, required=["gpu2"], name="bobs"
    )
    world.run(3)
    with world.slurm.world() as slurm:
        assert slurm.jobs[stranger].nodes == ["gpu2"]
    world.silent_agents.add("gpu2")
    world.dark.add("gpu2")
    while not Incident.objects.exists():
        world.tick(actions=False)
    world.dark.clear()
    world.run(15)
    with world.slurm.world() as slurm:
        assert slurm.jobs[stranger].base == "RUNNING"
    assert world.effects("down") == []
    assert world.effects("drain", "requeuehold") == ["drain gpu2", f"requeuehold {world.job_id}"]
    assert world.slurm_job().restarts == 1 and "gpu2" not in world.slurm_job().nodes


def test_agents_that_speak_again_before_anything_was_written(world: World) -> None:
    world.start()
    world.silent_agents.add("gpu2")
    world.dark.add("gpu2")
    while not Incident.objects.exists():
        world.tick(actions=False)
    world.silent_agents.clear()
    world.dark.clear()
    world.tick(actions=False)
    world.run(5)
    assert world.effects() == []
    assert NodeHold.objects.get().state == "released"
    assert world.incident().state == "awaiting_operator" and "speaks again" in world.incident().ask


def test_a_job_id_that_belongs_to_somebody_else_now(world: World) -> None:
    world.start()
    world.kill_host("gpu2")
    while not Incident.objects.exists():
        world.tick(actions=False)
    with world.slurm.world() as slurm:
        slurm.jobs[world.job_id].user = "bob"
        slurm.nodes["gpu2"].slurmd_dead_since = None
    world.dark.clear()
    world.run(10)
    assert world.effects("requeuehold", "hold", "exclude", "release") == []
    assert "belongs to bob" in world.action("requeue_excluding").outcome
