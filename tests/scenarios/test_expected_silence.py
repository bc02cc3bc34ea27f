"""Suspension, preemption, reboots, power saving, maintenance, reservations: nothing is decided, and no timer runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from controller.clock import aware
from controller.models import Action, AgentReport, Attempt, Exclusion, Incident, Node, NodeEvent, NodeHold
from controller.slurm.fake_world import FakeJob, FakeNode
from tests.scenarios.world import World

pytestmark = [pytest.mark.scenario, pytest.mark.django_db]


@contextmanager
def job(world: World) -> Iterator[FakeJob]:
    with world.slurm.world() as slurm:
        yield slurm.jobs[world.job_id]


@contextmanager
def node(world: World, name: str = "gpu2") -> Iterator[FakeNode]:
    with world.slurm.world() as slurm:
        yield slurm.nodes[name]


def mute(world: World, *names: str) -> None:
    """Nobody speaks and nobody answers: as silent as a dead host."""
    world.silent_agents.update(names)
    world.dark.update(names)


def wake(world: World) -> None:
    world.silent_agents.clear()
    world.dark.clear()


def nothing_happened(world: World) -> None:
    assert Incident.objects.count() == 0 and Action.objects.count() == 0
    assert world.effects() == []


@pytest.mark.parametrize("base", ["SUSPENDED", "STOPPED"])
def test_a_suspended_job(world: World, base: str) -> None:
    world.start()
    with job(world) as ours:
        ours.base = base
    world.run(3)
    mute(world, "gpu2")
    world.run(20)
    nothing_happened(world)
    with job(world) as ours:
        ours.base = "RUNNING"
    world.run(2)
    wake(world)
    world.run(10)
    nothing_happened(world)
    assert world.job().state == "training"


def test_a_host_that_died_while_its_job_was_suspended_is_found_after_a_whole_period(world: World) -> None:
    world.start()
    with job(world) as ours:
        ours.base = "SUSPENDED"
    world.run(3)
    mute(world, "gpu2")
    world.run(20)
    resumed = world.now
    with job(world) as ours:
        ours.base = "RUNNING"
    while not Incident.objects.exists():
        world.tick()
        assert world.now - resumed < 15
    assert world.incident().suspects == ["gpu2"]
    assert world.incident().detected_at.timestamp() - resumed > world.policy.limits.agent_silent_s
    assert world.incident().last_good_at.timestamp() < resumed - 15, "the last word is what it was"


def test_gang_scheduling_that_suspends_and_resumes_again_and_again(world: World) -> None:
    world.start()
    for _ in range(3):
        with job(world) as ours:
            ours.base = "SUSPENDED"
        world.silent_agents.update({"gpu1", "gpu2"})
        world.run(8)
        with job(world) as ours:
            ours.base = "RUNNING"
        world.silent_agents.clear()
        world.run(6)
    nothing_happened(world)


def test_a_job_preempted_and_queued_again_by_slurm(world: World) -> None:
    """PreemptMode=REQUEUE: it is killed, waits, and runs again when there is room. Nobody is charged."""
    world.start()
    with job(world) as ours:
        ours.base, ours.restarts, ours.nodes, ours.begin_time = "PENDING", 1, [], world.now + 20
    mute(world, "gpu1", "gpu2")
    world.run(15)
    nothing_happened(world)
    assert world.job().state == "queued" and Attempt.objects.get(generation=1).state == "ended"
    wake(world)
    world.run(12)
    nothing_happened(world)
    assert Attempt.objects.filter(generation=2).exists()


@pytest.mark.parametrize("flag", ["REBOOT_ISSUED", "POWER_DOWN", "MAINTENANCE", "RESERVED"])
def test_a_node_that_need_not_speak_and_then_must(world: World, flag: str) -> None:
    world.start()
    with node(world) as gpu2:
        gpu2.flags.append(flag)
    world.run(4)
    mute(world, "gpu2")
    world.run(15)
    nothing_happened(world)
    with node(world) as gpu2:
        gpu2.flags.remove(flag)
    over = world.now
    while not Incident.objects.exists():
        world.tick()
        assert world.now - over < 15
    assert world.incident().suspects == ["gpu2"]
    assert world.incident().detected_at.timestamp() - over > world.policy.limits.agent_silent_s


def test_a_planned_node_must_speak(world: World) -> None:
    world.start()
    with node(world) as gpu2:
        gpu2.flags.append("PLANNED")
    world.run(4)
    mute(world, "gpu2")
    world.run(12)
    assert world.incident().suspects == ["gpu2"]


def test_s10_a_reboot_while_our_job_runs(world: World) -> None:
    """MIXED+DRAIN+REBOOT_REQUESTED with our job, which ends, DOWN+DRAIN+REBOOT_ISSUED, IDLE: no verdict at any time."""
    world.start(cpus_per_node=4)
    with node(world) as gpu2:
        gpu2.flags.append("REBOOT_REQUESTED")
        gpu2.drain, gpu2.reason, gpu2.reason_user, gpu2.reason_at = True, "Reboot ASAP", "root", world.now
    world.run(20)
    nothing_happened(world)
    assert world.job().state == "training"
    world.slurm.end_job(world.job_id, "COMPLETED")
    world.run(4)
    with node(world) as gpu2:
        gpu2.flags[:] = ["REBOOT_ISSUED", "NOT_RESPONDING"]
        gpu2.down, gpu2.slurmd_dead_since = True, world.now
    mute(world, "gpu2")
    world.run(20)
    with node(world) as gpu2:
        gpu2.flags.clear()
        gpu2.down = gpu2.drain = False
        gpu2.slurmd_dead_since, gpu2.boot_time = None, world.now
    world.run(5)
    nothing_happened(world)
    assert world.job().state == "finished" and NodeHold.objects.count() == 0
    kinds = list(NodeEvent.objects.filter(node__name="gpu2").order_by("pk").values_list("kind", flat=True))
    assert kinds == ["drained", "down", "returned", "rebooted"]


@pytest.fixture
def held(world: World) -> World:
    """gpu2 died, is held, and its job runs elsewhere."""
    world.start()
    world.kill_host("gpu2")
    world.run(14)
    world.resume_trains()
    world.run(4)
    assert (NodeHold.objects.get().state, world.job().state) == ("drained", "training")
    return world


def reboot(world: World, *, clears_the_drain: bool) -> None:
    with node(world) as gpu2:
        gpu2.flags.append("REBOOT_ISSUED")
    world.run(4)
    with node(world) as gpu2:
        gpu2.flags.clear()
        gpu2.down, gpu2.slurmd_dead_since, gpu2.boot_time = False, None, world.now
        if clears_the_drain:
            gpu2.drain, gpu2.reason = False, ""
    wake(world)
    world.run(5)


def test_s10_a_reboot_that_clears_our_drain_clears_neither_hold_nor_exclusion(held: World) -> None:
    reboot(held, clears_the_drain=True)
    hold = NodeHold.objects.get()
    assert hold.state == "returned" and hold.ended_at is None
    held.run(10)
    assert NodeHold.objects.get().state == "returned"
    assert Exclusion.objects.get().expires_at.timestamp() > held.now + 86000
    assert held.effects("resume", "drain") == ["drain gpu2"], "and Slurm is left as it is"
    held.slurm.drain_node("gpu2", "root looks at it")
    held.run(5)
    assert NodeHold.objects.get().state in ("draining", "drained")


def test_a_persons_resume_after_the_reboot_is_a_release(held: World) -> None:
    """The same reboot, but the drain outlived it and was cleared afterwards."""
    reboot(held, clears_the_drain=False)
    assert NodeHold.objects.get().state == "drained"
    held.slurm.resume_node("gpu2")
    held.run(5)
    hold = NodeHold.objects.get()
    assert (hold.state, hold.ended_by) == ("released", "somebody in Slurm")


def test_a_resume_without_any_reboot_is_a_release(held: World) -> None:
    with node(held) as gpu2:
        gpu2.slurmd_dead_since = None
    wake(held)
    held.run(5)
    held.slurm.resume_node("gpu2")
    held.run(5)
    assert NodeHold.objects.get().state == "released"


def test_an_exclusions_time_stands_still_while_its_node_is_out(held: World) -> None:
    before = Exclusion.objects.get().expires_at
    held.advance(7200)
    held.run(4)
    assert Exclusion.objects.get().expires_at.timestamp() == pytest.approx(held.now + 86400, abs=10)
    with node(held) as gpu2:
        gpu2.slurmd_dead_since = None
    wake(held)
    held.run(5)
    held.slurm.resume_node("gpu2")
    held.run(5)
    counted = Exclusion.objects.get().expires_at
    held.advance(7200)
    held.run(4)
    assert Exclusion.objects.get().expires_at == counted > before, "in service it runs"


def test_three_drains_in_a_day_stick(held: World) -> None:
    """S41: our drain, then it goes in and out twice more. What Slurm shows clears nothing any more, a person does."""
    with node(held) as gpu2:
        gpu2.slurmd_dead_since = None
    wake(held)
    held.run(5)
    for _ in range(2):
        held.slurm.resume_node("gpu2")
        held.run(3)
        held.slurm.drain_node("gpu2", "nhc: load")
        held.run(3)
    assert NodeHold.objects.get().state == "released", "the first hold ended with the first resume"
    NodeHold.objects.update(state="drained", ended_at=None)  # as if that resume had come after the others
    held.run(5)
    assert NodeHold.objects.get().sticky
    held.slurm.resume_node("gpu2")
    held.run(10)
    assert NodeHold.objects.get().state == "returned"


def test_a_controller_that_restarts_into_silence_touches_no_node(world: World) -> None:
    """S41: after its restart every node of the fleet looks silent. It checks, and drains none of them."""
    world.start()
    world.advance(900)
    mute(world, "gpu1", "gpu2", "gpu3", "gpu4")
    world.controller_cut = True
    world.run(20)
    nothing_happened(world)
    assert not Node.objects.exclude(flags=[]).exists() and NodeHold.objects.count() == 0


@pytest.mark.parametrize(("age_s", "effect"), [(30.0, True), (-0.5, False)], ids=["late", "alive"])
def test_a_message_that_was_under_way_when_the_host_died_is_no_return(world: World, age_s: float, effect: bool) -> None:
    world.start()
    world.kill_host("gpu2")
    while not Incident.objects.exists():
        world.tick(actions=False)
    world.advance(1)
    written = aware(world.now - age_s)
    AgentReport.objects.filter(node="gpu2").update(received_at=aware(world.now), sent_at=written)
    world.run(10)
    assert bool(world.effects("drain")) is effect
