"""Other people's wishes: cancels, holds, drains, jobs and --no-requeue are neither overwritten nor undone."""

from collections.abc import Callable
from typing import Any

import pytest

from controller import commands
from controller.models import Incident, NodeHold
from controller.slurm.fake_world import FakeNode
from controller.slurm.views import NodeView
from tests.scenarios.conftest import decided
from tests.scenarios.world import World

pytestmark = [pytest.mark.scenario, pytest.mark.django_db]


def test_a_user_cancels_while_the_incident_is_acting(world: World) -> None:
    world.start()
    decided(world)
    world.slurm.cancel_job(world.job_id)
    world.run(10)
    assert world.job().state == "cancelled"
    assert world.incident().state == "abandoned"
    assert world.slurm_job().base == "CANCELLED"
    assert world.effects("hold", "requeuehold", "release", "exclude") == []


def test_a_hold_by_the_owner_is_never_released(world: World) -> None:
    world.start()
    decided(world)
    with world.slurm.world() as slurm:
        slurm.jobs[world.job_id].held = "JobHeldUser"
    world.run(15)
    job = world.slurm_job()
    assert (job.base, job.held, job.restarts) == ("PENDING", "JobHeldUser", 1)
    assert world.effects("release") == []
    assert job.excluded == ["gpu2"], "what helps the owner later is done"
    assert world.incident().state == "awaiting_operator" and "held" in world.incident().ask
    world.slurm.release_job(world.job_id)
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
    decided(world)
    with world.slurm.world() as slurm:
        slurm.jobs[world.job_id].user = "bob"
        slurm.nodes["gpu2"].slurmd_dead_since = None
    world.dark.clear()
    world.run(10)
    assert world.effects("requeuehold", "hold", "exclude", "release") == []
    assert "belongs to bob" in world.action("requeue_excluding").outcome


# --- whose drain it is ------------------------------------------------------------------------------------------


class Between:
    """The port of a controller beside which something happens right after its `nth` reading of a node."""

    def __init__(self, world: World, happens: Callable[[], None], nth: int = 1) -> None:
        self.slurm, self.happens, self.left = world.slurm, happens, nth

    def __getattr__(self, name: str) -> Any:
        return getattr(self.slurm, name)

    def read_node(self, name: str) -> NodeView | None:
        seen = self.slurm.read_node(name)
        self.left -= 1
        if self.left == 0:
            self.happens()
        return seen


def test_a_drain_that_appears_between_look_and_write_is_adopted(world: World) -> None:
    world.start()
    decided(world)
    world.port = Between(world, lambda: world.slurm.drain_node("gpu2", "Eve: cable"))  # type: ignore[assignment]
    world.run(10)
    assert world.slurm.read_node("gpu2").reason == "Eve: cable"
    assert world.effects("drain", "down") == ["drain gpu2"], "Eve's own"
    assert NodeHold.objects.get().adopted


def fail(node: FakeNode) -> None:
    node.flags.append("FAIL")


def admins_down(node: FakeNode) -> None:
    node.down, node.reason, node.reason_user = True, "RMA 5518", "root"


def slurms_down(node: FakeNode) -> None:
    node.down, node.reason, node.reason_user = True, "Not responding", "slurm"


@pytest.mark.parametrize(("change", "adopted"), [(fail, True), (admins_down, True), (slurms_down, False)])
def test_fail_and_an_admins_down_are_adopted_and_slurms_own_is_not(
    world: World, change: Callable[[FakeNode], None], adopted: bool
) -> None:
    world.start()
    decided(world)
    with world.slurm.world() as slurm:
        change(slurm.nodes["gpu2"])
    world.run(8)
    assert NodeHold.objects.get().adopted is adopted
    assert world.effects("drain") == ([] if adopted else ["drain gpu2"]) and world.effects("resume") == []


def test_an_adopted_drain_that_its_owner_clears_ends_our_record(world: World) -> None:
    world.start()
    world.slurm.drain_node("gpu2", "Eve: cable")
    world.run(3)
    world.kill_host("gpu2")
    world.run(14)
    world.slurm.restore_host("gpu2")
    world.slurm.resume_node("gpu2")
    world.run(6)
    hold = NodeHold.objects.get()
    assert (hold.state, hold.ended_by) == ("released", "somebody in Slurm")
    assert world.effects("resume") == ["resume gpu2"], "Eve's own"


def test_our_drain_that_somebody_took_over_is_not_cleared_by_us(world: World) -> None:
    world.start()
    world.kill_host("gpu2")
    world.run(14)
    world.slurm.drain_node("gpu2", "RMA 5518")
    commands.release_hold(NodeHold.objects.get(), who="eve", reason="?", policy=world.policy, now=world.now)
    world.run(3)
    assert world.effects("resume") == [] and world.slurm.read_node("gpu2").reason == "RMA 5518"
    assert "not ours" in world.action("release_node").outcome
