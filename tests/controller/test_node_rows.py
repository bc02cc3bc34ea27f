"""Slurm's view of nodes into rows: events of what changed, who is there, since when they should speak."""

import pytest

from controller.clock import aware
from controller.models import Cluster, Node, NodeEvent
from controller.slurm.fake import FakeSlurm
from controller.slurm.fake_world import FakeJob
from controller.snapshot.poll import poll
from tests.builders import T0

pytestmark = pytest.mark.db


class Clock:
    now = T0


@pytest.fixture
def slurm() -> FakeSlurm:
    Clock.now = T0
    made = FakeSlurm(lambda: aware(Clock.now))
    made.add_nodes("gpu1", "gpu2")
    return made


@pytest.fixture
def cluster(db: None) -> Cluster:
    return Cluster.objects.create(name="fake")


def look(cluster: Cluster, slurm: FakeSlurm, after_s: float = 2.0) -> Node:
    Clock.now += after_s
    assert poll(cluster, slurm, Clock.now)
    return Node.objects.get(name="gpu2")


def gpu2(slurm: FakeSlurm, **changes: object) -> None:
    with slurm.world() as world:
        for name, value in changes.items():
            setattr(world.nodes["gpu2"], name, value)


def kinds() -> list[str]:
    return list(NodeEvent.objects.order_by("pk").values_list("kind", flat=True))


def test_what_happens_to_a_node_is_an_event(cluster: Cluster, slurm: FakeSlurm) -> None:
    look(cluster, slurm)
    slurm.drain_node("gpu2", "Eve: cable")
    look(cluster, slurm)
    look(cluster, slurm)
    slurm.resume_node("gpu2")
    look(cluster, slurm)
    assert kinds() == ["drained", "returned"]
    assert NodeEvent.objects.first() is not None and "Eve: cable" in NodeEvent.objects.get(kind="drained").text


def test_a_node_first_seen_drained_was_not_drained_now(cluster: Cluster, slurm: FakeSlurm) -> None:
    slurm.drain_node("gpu2", "since years")
    look(cluster, slurm)
    assert kinds() == []


@pytest.mark.parametrize(("seconds", "rebooted"), [(1.5, False), (3600.0, True)])
def test_a_boot_time_that_wavers_is_no_boot(cluster: Cluster, slurm: FakeSlurm, seconds: float, rebooted: bool) -> None:
    look(cluster, slurm)
    gpu2(slurm, boot_time=T0 + seconds)
    node = look(cluster, slurm, 4000)
    assert (node.rebooted_at is not None) is rebooted
    assert kinds() == (["rebooted"] if rebooted else [])


def test_a_node_without_a_boot_time_keeps_what_was_known(cluster: Cluster, slurm: FakeSlurm) -> None:
    look(cluster, slurm)
    gpu2(slurm, boot_time=0.0)
    assert look(cluster, slurm).boot_at == aware(T0)


@pytest.mark.parametrize("flag", ["MAINTENANCE", "POWERED_DOWN", "REBOOT_ISSUED", "RESERVED"])
def test_the_end_of_an_expected_silence_is_kept(cluster: Cluster, slurm: FakeSlurm, flag: str) -> None:
    look(cluster, slurm)
    gpu2(slurm, flags=[flag])
    assert look(cluster, slurm).excused_at is None
    gpu2(slurm, flags=["PLANNED"])
    over = look(cluster, slurm)
    assert over.excused_at == aware(Clock.now)
    assert look(cluster, slurm).excused_at == over.excused_at


def test_a_node_that_was_hidden_should_speak_from_its_return(cluster: Cluster, slurm: FakeSlurm) -> None:
    look(cluster, slurm)
    with slurm.world() as world:
        hidden = world.nodes.pop("gpu2")
    node = look(cluster, slurm)
    assert node.seen_at == aware(T0 + 2)
    with slurm.world() as world:
        world.nodes["gpu2"] = hidden
    assert look(cluster, slurm).excused_at == aware(Clock.now)


def test_who_is_there_and_until_when(cluster: Cluster, slurm: FakeSlurm) -> None:
    started = slurm.submit(user="bob", required=["gpu2"], time_limit_s=3600.0, cpus_per_node=4)
    slurm.tick()
    assert look(cluster, slurm).tenants == [{"job": started, "user": "bob", "until": T0 + 3600, "why": ""}]
    with slurm.world() as world:
        job: FakeJob = world.jobs[started]
        job.base = "SUSPENDED"
    assert look(cluster, slurm).tenants == [{"job": started, "user": "bob", "until": None, "why": "suspended"}]
