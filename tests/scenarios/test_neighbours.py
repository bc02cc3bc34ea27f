"""DOWN kills every job on a node: strangers' jobs that may be alive there survive, and what is hidden is unknown."""

from dataclasses import replace
from typing import Any

import pytest

from controller.models import Attempt, Cluster, Incident, Node
from controller.slurm.views import ClusterView
from tests.scenarios.conftest import decided
from tests.scenarios.world import World

pytestmark = [pytest.mark.scenario, pytest.mark.django_db]


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


def test_another_users_job_on_a_reachable_node_survives(world: World) -> None:
    """Decided while the host was dark; it answers again before DOWN is written."""
    stranger = stranger_on_gpu2(world)
    world.silent_agents.add("gpu2")
    world.dark.add("gpu2")
    while not Incident.objects.exists():
        world.tick(actions=False)
    world.dark.clear()
    world.run(15)
    assert base_of(world, stranger) == "RUNNING"
    assert world.effects("down") == []
    assert world.effects("drain", "requeuehold") == ["drain gpu2", f"requeuehold {world.job_id}"]
    assert world.slurm_job().restarts == 1 and "gpu2" not in world.slurm_job().nodes


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
