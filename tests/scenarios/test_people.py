"""Other people's wishes: cancels, holds, drains, jobs and --no-requeue are neither overwritten nor undone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller import commands
from controller.models import Attempt, Cluster, Incident, Node, NodeHold
from controller.slurm.fake_world import FakeNode
from controller.slurm.views import ClusterView, NodeView
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


def decided(world: World) -> None:
    """gpu2 is lost, and nothing has been done yet."""
    world.kill_host("gpu2")
    while not Incident.objects.exists():
        world.tick(actions=False)


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


# --- DOWN kills neighbours --------------------------------------------------------------------------------------


def stranger_on_gpu2(world: World) -> str:
    """bob's job beside ours, which nobody requeues."""
    world.start(cpus_per_node=4)
    job = world.slurm.submit(user="bob", num_nodes=1, cpus_per_node=4, requeue=False, required=["gpu2"], name="bobs")
    world.run(3)
    assert Node.objects.get(name="gpu2").tenants[-1] == {"job": job, "user": "bob", "until": None, "why": ""}
    return job


def base_of(world: World, job: str) -> str:
    with world.slurm.world() as slurm:
        return slurm.jobs[job].base


def test_on_a_host_that_is_dead_to_everybody_strangers_jobs_are_dead_too(world: World) -> None:
    stranger = stranger_on_gpu2(world)
    world.kill_host("gpu2")
    world.run(10)
    assert world.effects("down") == ["down gpu2"] and base_of(world, stranger) == "NODE_FAIL"


def only_the_controller_is_cut(world: World) -> None:
    """The host came back, though the controller cannot see that; what agents saw of it is a minute old."""
    world.dark.clear()
    world.slurm.restore_host("gpu2")
    world.dark_from_controller.add("gpu2")
    world.advance(60)


def test_the_controllers_word_alone_kills_no_strangers_job(world: World) -> None:
    stranger = stranger_on_gpu2(world)
    decided(world)
    only_the_controller_is_cut(world)
    world.run(10)
    assert world.effects("down") == [] and base_of(world, stranger) == "RUNNING"
    assert "1 job of others on it may be alive" in world.action("hold_node").outcome
    assert "bob" not in str(world.action("hold_node").log), "the owner of our job reads this"


def test_for_our_own_job_it_is_enough(world: World) -> None:
    world.start()
    decided(world)
    only_the_controller_is_cut(world)
    world.run(10)
    assert world.effects("down") == ["down gpu2"]


def test_a_controller_that_reaches_nobody_sets_nothing_down(world: World) -> None:
    world.start()
    decided(world)
    world.controller_cut = True
    world.run(10)
    assert world.effects("drain", "down") == ["drain gpu2"]
    assert "reaches no other node" in world.action("hold_node").outcome


class Private:
    """What a reader sees whom PrivateData keeps from other people's jobs."""

    def __init__(self, world: World, user: str = "ada") -> None:
        self.slurm, self.user = world.slurm, user

    def __getattr__(self, name: str) -> Any:
        return getattr(self.slurm, name)

    def read_cluster(self) -> ClusterView:
        view = self.slurm.read_cluster()
        jobs = {name: job for name, job in view.jobs.items() if job.user == self.user}
        return replace(view, jobs=jobs, private_data=("jobs",))


def test_jobs_that_may_be_hidden_are_not_killed_either(world: World) -> None:
    stranger = stranger_on_gpu2(world)
    world.port = Private(world)  # type: ignore[assignment]
    decided(world)
    only_the_controller_is_cut(world)
    world.run(10)
    assert world.effects("down") == [] and base_of(world, stranger) == "RUNNING"
    assert "may hide" in world.action("hold_node").outcome


# --- what is hidden is unknown ----------------------------------------------------------------------------------


def test_a_job_that_is_hidden_from_us_has_not_ended(world: World) -> None:
    world.start()
    world.port = Private(world, user="carol")  # type: ignore[assignment]
    world.run(3)
    world.kill_host("gpu2")
    world.run(15)
    assert Incident.objects.count() == 0 and world.effects() == []
    assert world.job().state == "training" and "may be hiding it (PrivateData=jobs)" in world.job().view["missing"]
    assert Attempt.objects.get().state == "running"
    world.port = world.slurm
    world.run(12)
    assert world.incident().suspects == ["gpu2"], "shown again, it is judged again"


class HiddenNode:
    """A partition that was hidden, or PrivateData=nodes."""

    def __init__(self, world: World, *names: str) -> None:
        self.slurm, self.names = world.slurm, names

    def __getattr__(self, name: str) -> Any:
        return getattr(self.slurm, name)

    def read_cluster(self) -> ClusterView:
        view = self.slurm.read_cluster()
        return replace(view, nodes={name: node for name, node in view.nodes.items() if name not in self.names})


def test_a_node_that_is_hidden_from_us_is_not_gone(world: World) -> None:
    """Its row says what it was when it was last shown: here DOWN, which nobody may act upon now."""
    world.start()
    world.port = HiddenNode(world, "gpu2")  # type: ignore[assignment]
    world.run(3)
    Node.objects.filter(name="gpu2").update(base_state="DOWN", reason="Not responding")
    world.silent_agents.add("gpu2")
    world.dark.add("gpu2")
    world.run(15)
    assert Incident.objects.count() == 0 and world.effects() == [] and world.job().state == "training"
    cluster, gpu2 = Cluster.objects.get(), Node.objects.get(name="gpu2")
    assert gpu2.seen_at < cluster.view_at and cluster.nodes_total == 3
