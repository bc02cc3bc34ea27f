"""Other people on a real Slurm with accounting: their jobs, drains, suspensions, reservations, and what they hide.

Silence is made real: the node's cables are out and its agent says nothing, for longer than the controller waits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from controller import clock, commands
from controller.models import Action, Attempt, Cluster, Incident, Node, NodeEvent, NodeHold, TrainingJob
from controller.queries.tenants import Tenant, tenants_of
from controller.slurm import reach
from deploy.lab.cluster import Lab
from tests.cluster.lab_world import LabWorld, slurm_of

pytestmark = [pytest.mark.cluster, pytest.mark.django_db]

WHOLE = ("-c16",)  # every core of a node, so that an urgent job must take it from us
LONGER_THAN_THE_LIMIT_S = 7.0  # 3 s of silence, then a check of 1 s: a dead node is found within 6


@pytest.fixture
def world(full_lab: Lab) -> LabWorld:
    return LabWorld(full_lab)


@contextmanager
def silence(world: LabWorld) -> Iterator[None]:
    """gpu2 as silent as a dead host, for as long as the block lasts."""
    world.lab.cut_network(2)
    world.silent.add("gpu2")
    yield
    world.lab.restore(2)
    node = world.lab.state.node(2)
    door = reach.Target(node.management, node.slurmd_port)
    world.until(lambda: reach.probe([door], 1.0) == ["open"], "gpu2 answers")
    world.silent.clear()


def nothing_happened() -> None:
    assert Incident.objects.count() == 0 and Action.objects.count() == 0 and NodeHold.objects.count() == 0


def find(world: LabWorld) -> None:
    """What is wrong is decided, and nothing is done about it yet."""
    end = clock.now() + 30
    while not Incident.objects.exists():
        assert clock.now() < end, "no incident in 30 s"
        world.tick(actions=False)


def is_in(world: LabWorld, job_id: str, base: str) -> bool:
    found = world.slurm.read_job(job_id)
    return found is not None and found.state.base == base


def job_says(job: TrainingJob, base: str) -> bool:
    """The controller's own view has it."""
    job.refresh_from_db()
    return bool(job.view["base"] == base)


def urgent(world: LabWorld) -> str:
    """The other user's job that takes both our nodes."""
    job_id = world.submit("-p", "urgent", "-N2", "-w", "gpu[1-2]", *WHOLE, user="other")
    world.until(lambda: is_in(world, job_id, "RUNNING"), "the urgent job runs", 60, ticking=True)
    return job_id


# --- expected silence -------------------------------------------------------------------------------------------


def test_a_job_that_an_operator_suspends(world: LabWorld) -> None:
    job = world.start()
    world.lab.run("scontrol", "suspend", world.job_id, user="operator")
    world.until(lambda: job_says(job, "SUSPENDED"), "the suspension is seen", ticking=True)
    with silence(world):
        world.run(LONGER_THAN_THE_LIMIT_S)
    world.lab.run("scontrol", "resume", world.job_id, user="operator")
    world.until(lambda: job_says(job, "RUNNING"), "the job is seen to run", ticking=True)
    world.run(1)
    nothing_happened()
    assert job.state == "training" and world.view().restarts == 0


def test_a_job_that_a_higher_partition_suspends(world: LabWorld) -> None:
    job = world.start("-p", "gang", *WHOLE)
    taker = urgent(world)
    world.until(lambda: job_says(job, "SUSPENDED"), "the suspension is seen", ticking=True)
    with silence(world):
        world.run(LONGER_THAN_THE_LIMIT_S)
    world.lab.run("scancel", taker, user="other")
    world.until(lambda: job_says(job, "RUNNING"), "the job is seen to run", 60, ticking=True)
    world.run(1)
    nothing_happened()
    assert job.state == "training" and world.view().restarts == 0


def test_a_job_that_a_higher_partition_requeues(world: LabWorld) -> None:
    """Nobody is charged: no incident, and the next start is one more attempt of the same job."""
    job = world.start(*WHOLE)
    urgent(world)
    world.until(lambda: job_says(job, "PENDING"), "the job is seen to wait", ticking=True)
    with silence(world):
        world.run(LONGER_THAN_THE_LIMIT_S)
    nothing_happened()
    job.refresh_from_db()
    assert job.state == "queued" and Attempt.objects.get().state == "ended"
    world.lab.run("scontrol", "update", f"JobId={world.job_id}", "StartTime=now", user="operator")
    world.until(lambda: is_in(world, world.job_id, "RUNNING"), "the job runs again", 60, ticking=True)
    assert world.view().nodes == ("gpu3", "gpu4") and world.view().restarts == 1
    world.attempt(job)
    world.until(lambda: job_says(job, "RUNNING") and job.state == "training", "it trains", ticking=True)
    nothing_happened()


def test_a_node_in_maintenance_is_silent_and_afterwards_must_speak(world: LabWorld) -> None:
    world.start()
    for_root = ("StartTime=now", "Duration=60", "Nodes=gpu2", "Flags=MAINT,IGNORE_JOBS", "Users=root")
    world.lab.run("scontrol", "create", "reservation", "ReservationName=fans", *for_root, user="operator")
    world.until(in_maintenance, "the maintenance is seen", 60, ticking=True)
    with silence(world):
        world.run(LONGER_THAN_THE_LIMIT_S)
        nothing_happened()
        world.lab.run("scontrol", "delete", "ReservationName=fans", user="operator")
        find(world)
    assert world.incident().suspects == ["gpu2"] and not in_maintenance()


def in_maintenance() -> bool:
    return "MAINTENANCE" in Node.objects.get(name="gpu2").flags


# --- what is hidden is unknown ----------------------------------------------------------------------------------


def test_what_is_hidden_from_the_reader_is_unknown(world: LabWorld) -> None:
    """A reader without rights sees a hidden partition's job; PrivateData takes first the nodes, then the jobs away."""
    world.site = replace(world.site, port=slurm_of(world.lab, "other"))
    job = world.start("-p", "hidden")
    world.lab.private_data("nodes")
    world.until(lambda: "denied" in Cluster.objects.get().view_error, "the nodes are not shown", ticking=True)
    with silence(world):
        world.run(LONGER_THAN_THE_LIMIT_S)
        nothing_happened()
        world.lab.private_data("jobs")
        world.until(lambda: is_not_shown(job), "the job is not shown", ticking=True)
        world.run(LONGER_THAN_THE_LIMIT_S)
        nothing_happened()
        job.refresh_from_db()
        assert job.state == "training" and job.ended_at is None and Attempt.objects.get().state == "running"
        world.lab.private_data()
        find(world)
    assert world.incident().suspects == ["gpu2"], "shown again, it is judged again"


def is_not_shown(job: TrainingJob) -> bool:
    job.refresh_from_db()
    return "PrivateData=jobs" in job.view.get("missing", "") and not Cluster.objects.get().view_error


# --- people's jobs and drains -----------------------------------------------------------------------------------


@pytest.fixture
def go(full_lab: Lab) -> Iterator[Path]:
    """The file on which the other user's job ends well."""
    path = full_lab.dir / "home" / "go"
    yield path
    path.unlink(missing_ok=True)


def decided(world: LabWorld) -> None:
    """gpu2 fell silent, which opened an incident, and answers again before anything is carried out."""
    with silence(world):
        find(world)
    world.silent.add("gpu2")


def test_another_users_job_ends_by_itself_and_is_what_the_drain_waits_for(world: LabWorld, go: Path) -> None:
    world.start()
    script = f"#!/bin/sh\nuntil [ -e {go} ]; do sleep 0.2; done\n"
    stranger = world.submit("--no-requeue", "-w", "gpu2", "-D", "/", user="other", script=script)
    world.until(lambda: is_in(world, stranger, "RUNNING"), "the stranger's job runs")
    decided(world)
    recovering = Incident.objects.filter(state="recovering")
    world.until(recovering.exists, "recovering", 60, ticking=True)
    assert is_in(world, stranger, "RUNNING") and "gpu2" not in world.view().nodes
    world.until(lambda: waited_for() == [stranger], "the drain waits for it alone", ticking=True)
    assert tenants(staff=True)[0].user == world.lab.users["other"]
    assert tenants(staff=False) == [Tenant(seen=False)], "whose it is, its owner alone may know"
    assert NodeHold.objects.get().state == "draining"
    go.touch()
    world.until(lambda: NodeHold.objects.get().state == "drained", "drained", ticking=True)
    assert is_in(world, stranger, "COMPLETED")
    assert waited_for() == []


def waited_for() -> list[str]:
    return [tenant.job_id for tenant in tenants(staff=True)]


def tenants(*, staff: bool) -> list[Tenant]:
    reader = User.objects.get_or_create(username=f"reader-{staff}", is_staff=staff)[0]
    gpu2 = Node.objects.get(name="gpu2")
    return tenants_of(reader, [gpu2])[gpu2.pk]


def test_an_administrators_drain_outlives_our_incident_and_the_nodes_reboot(world: LabWorld) -> None:
    """The host dies when our job has left it, and registers with another boot."""
    world.start()
    update = ("scontrol", "update", "NodeName=gpu2")
    world.lab.run(*update, "State=DRAIN", "Reason=fan noise", user="administrator")
    decided(world)
    world.until(Incident.objects.filter(state="recovering").exists, "recovering", 60, ticking=True)
    world.kill_node(2)
    world.lab.restore(2)
    world.until(NodeEvent.objects.filter(node__name="gpu2", kind="rebooted").exists, "the reboot is seen", ticking=True)
    hold = NodeHold.objects.get()
    assert hold.adopted and hold.ended_at is None, "a reboot is nobody's word that the node is well"
    assert "gpu2" in world.view().excluded_nodes
    commands.release_hold(hold, who="eve", reason="?", policy=world.site.policy, now=clock.now())
    world.run(3)
    node = world.slurm.read_node("gpu2")
    assert node is not None and node.state.drain
    assert (node.reason, node.reason_user) == ("fan noise", world.lab.users["administrator"])
