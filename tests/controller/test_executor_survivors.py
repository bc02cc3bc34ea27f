"""The nodes that a hit job keeps: reserved before the kill, used or ended at the release, given back."""

from typing import Any

import pytest

from controller.errors import RefusalKind
from controller.models import Action, Cluster
from tests.controller.ordering import decided, requeue
from tests.scenarios.world import World

pytestmark = [pytest.mark.db, pytest.mark.django_db]


@pytest.fixture
def world(db: None) -> World:
    return World()


GIVE_BACK = "give_back"


def reservations(world: World) -> list[str]:
    return list(world.slurm.read_cluster().reservations)


def test_others_wait_so_the_job_starts_in_the_reservation_and_it_is_given_back(world: World) -> None:
    decided(world)
    world.slurm.submit(num_nodes=3, user="eve")
    world.run(8)
    assert world.effects("set_reservation") == ["set_reservation 1"] and world.slurm_job().base == "RUNNING"
    world.run(12)
    assert world.effects("free") == ["free 1"] and reservations(world) == []
    assert "is deleted: gpu1" in world.action(GIVE_BACK).outcome and world.slurm_job().base == "RUNNING"


def test_a_job_that_waits_keeps_its_survivors_and_then_starts(world: World) -> None:
    world.auto_resume = False
    world.slurm.submit(num_nodes=2, user="eve", required=["gpu3", "gpu4"])
    decided(world)
    world.slurm.submit(num_nodes=1, user="eve")
    world.run(25)
    assert requeue(world).state == "done" and "waits: Resources" in requeue(world).outcome
    assert world.action(GIVE_BACK).outcome == f"job {world.job_id} waits with gpu1 kept for it"
    assert world.incident().state == "recovering", "the incident does not wait for what is given back"
    world.slurm.end_job("1")
    world.run(15)
    assert world.slurm_job().base == "RUNNING" and "gpu1" in world.slurm_job().nodes
    assert reservations(world) == [] and world.action(GIVE_BACK).state == "done"
    stamps = world.incident().recoveries.get().stamps
    assert "trainingjob" in stamps["allocated"]["source"] and stamps["allocated"]["at"] > stamps["released"]["at"]


def test_a_reservation_that_ended_by_itself_is_no_loss(world: World) -> None:
    world.slurm.submit(num_nodes=2, user="eve", required=["gpu3", "gpu4"])
    decided(world)
    world.slurm.submit(num_nodes=1, user="eve")
    world.run(20)
    assert world.slurm_job().reservation != ""
    world.now += 300
    world.run(10)
    assert "not there any more" in world.action(GIVE_BACK).outcome
    assert (world.slurm_job().reservation, world.slurm_job().held) == ("", "")


@pytest.mark.parametrize("known", [True, False])
def test_without_the_right_the_requeue_goes_on_without(world: World, known: bool) -> None:
    decided(world)
    if known:
        Cluster.objects.update(rights={"capabilities": {"reserve": {"may": "no"}}})
    world.slurm.fail_next("refused", call="reserve_nodes", refusal_kind=RefusalKind.NOT_PERMITTED)
    world.run(15)
    assert requeue(world).state == "done" and world.effects("reserve") == []
    assert Action.objects.filter(kind=GIVE_BACK).count() == (0 if known else 1)
    assert Cluster.objects.get().rights["capabilities"]["reserve"]["may"] == "no", "it is remembered"


@pytest.mark.parametrize("call", ["reserve_nodes", "delete_reservation", "set_reservation"])
@pytest.mark.parametrize("effect", ["never", "now", "later"])
def test_a_reservations_call_without_an_answer(world: World, call: str, effect: Any) -> None:
    decided(world)
    if call == "set_reservation":
        world.slurm.submit(num_nodes=3, user="eve")
    world.slurm.fail_next("timeout", call=call, effect=effect, delay=1.0)
    world.run(30)
    assert requeue(world).state == "done" and world.slurm_job().base == "RUNNING"
    assert len(world.slurm.effects("reserve")) == 1 and reservations(world) == []
    assert world.slurm_job().reservation == "" and world.action(GIVE_BACK).state == "done"


def test_a_reservation_in_use_is_left_to_its_end(world: World) -> None:
    """Another job of the owner has been put into it: not ours to throw out."""
    decided(world)
    world.slurm.submit(num_nodes=3, user="eve")
    world.run(8)
    (name,) = reservations(world)
    other = world.slurm.submit(reservation=name, held="JobHeldUser")
    world.run(15)
    assert "is in use" in world.action(GIVE_BACK).outcome and reservations(world) == [name]
    with world.slurm.world() as slurm:
        assert slurm.jobs[other].reservation == name
    world.now += 300
    world.run(5)
    assert world.action(GIVE_BACK).state == "done" and reservations(world) == []


def test_the_users_reservation_is_kept(world: World) -> None:
    world.slurm.add_reservation("course", ["gpu1", "gpu2", "gpu3"], ["ada"])
    decided(world, reservation="course")
    world.run(15)
    assert world.effects("reserve", "set_reservation") == [] and reservations(world) == ["course"]
    assert (world.slurm_job().reservation, world.slurm_job().nodes) == ("course", ["gpu1", "gpu3"])


def test_nodes_that_a_maintenance_has_are_not_taken(world: World) -> None:
    decided(world)
    world.slurm.add_reservation("maintenance", ["gpu1"], ["root"], flags=["MAINT"])
    world.run(15)
    assert world.effects("reserve") == [] and reservations(world) == ["maintenance"]
    assert requeue(world).state == "done" and world.action(GIVE_BACK).state == "done"
