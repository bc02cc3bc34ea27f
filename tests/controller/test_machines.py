"""The machine behind a node name: taken down where Slurm confirms the agent, a swap is an event, history stays put."""

from collections.abc import Callable
from typing import Any

import pytest

from controller.clock import aware
from controller.ledger.machines import follow_machines
from controller.models import AgentReport, Cluster, Machine, Node, NodeEvent, NodeHold
from tests.builders import T0

pytestmark = pytest.mark.db
Maker = Callable[..., Any]
ONE = {"serials": ["product_uuid:a"], "macs": ["m1"], "guids": ["i1"], "gpus": ["g1", "g2"], "machine_id": "s1"}
OTHER = {"serials": [], "macs": ["m8"], "guids": [], "gpus": ["g8", "g9"], "machine_id": "s1"}


@pytest.fixture
def cluster(db: None) -> Cluster:
    return Cluster.objects.create(name="fake")


@pytest.fixture
def speak(cluster: Cluster, make_job: Maker, make_attempt: Maker, make_node: Maker) -> Maker:
    """`speak("gpu1", identity)`: a job of its own there whose agent says that of its machine."""
    count = [0]

    def spoken(name: str, identity: dict[str, Any], *, boot_id: str = "b1", nodes: Any = None, now: float = T0) -> Node:
        count[0] += 1
        job = make_job(
            run_id=f"tj-{count[0]:012x}",
            token=f"t{count[0]}",
            cluster=cluster,
            owner_confirmed=True,
            view={"nodes": [name] if nodes is None else nodes},
        )
        if not Node.objects.filter(name=name).exists():
            make_node(name, cluster=cluster)
        at = aware(now)
        AgentReport.objects.create(
            attempt=make_attempt(job, created_at=aware(now - 60)), node=name, received_at=at, sent_at=at,
            state="running", boot_id=boot_id, identity=identity,
        )  # fmt: skip
        follow_machines(cluster, now, polled=True)
        return Node.objects.get(name=name)

    return spoken


def kinds(node: Node) -> list[str]:
    return list(node.events.order_by("pk").values_list("kind", flat=True))


def test_a_machine_is_known_by_what_its_agent_can_read(speak: Maker) -> None:
    node = speak("gpu1", ONE)
    assert node.machine is not None and node.boot_id == "b1"
    assert node.machine.facts["network"] == ["m1", "i1"] and node.machine.facts["system"] == ["s1"]
    again = speak("gpu1", ONE, now=T0 + 500)
    assert again.machine == node.machine and Machine.objects.count() == 1 and kinds(node) == []
    assert Machine.objects.get().last_seen_at == aware(T0 + 500)


def test_a_swap_is_an_event_and_lifts_nothing(speak: Maker) -> None:
    node = speak("gpu1", {**ONE, "serials": []})
    hold = NodeHold.objects.create(
        node=node,
        machine=node.machine,
        state="drained",
        token="t",
        reason="x",
        created_at=aware(T0),
        state_at=aware(T0),
    )
    swapped = speak("gpu1", OTHER, boot_id="b2", now=T0 + 9000)
    assert swapped.machine is not None and swapped.machine != node.machine
    assert kinds(node) == ["rebooted", "swapped"]
    text = NodeEvent.objects.get(kind="swapped").text
    assert "another machine answers under this name, other GPUs and network cards" in text
    hold.refresh_from_db()
    assert (hold.state, hold.machine) == ("drained", node.machine), "made for the machine that is gone"


def test_history_follows_the_machine_to_another_name(speak: Maker) -> None:
    first = speak("gpu1", ONE)
    NodeHold.objects.create(
        node=first, machine=first.machine, state="drained", token="t", reason="x",
        created_at=aware(T0), state_at=aware(T0),
    )  # fmt: skip
    speak("gpu7", {**OTHER, "serials": ["product_uuid:b"]})
    Node.objects.filter(name="gpu1").update(base_state="DOWN")
    moved = speak("gpu7", ONE, now=T0 + 9000)
    assert moved.machine == first.machine
    assert "held before as gpu1" in NodeEvent.objects.get(kind="swapped").text


@pytest.mark.parametrize(
    "identity",
    [{}, {"machine_id": "s1"}, {"machine_id": "s2", "macs": [], "guids": [], "gpus": [], "serials": []}],
    ids=["nothing", "a shared installation", "only an installation"],
)
def test_little_knowledge_is_no_machine(speak: Maker, identity: dict[str, Any]) -> None:
    """As in the lab: namespaces on one host, with its machine id and cards made of software."""
    assert speak("gpu1", identity).machine is None and speak("gpu2", identity).machine is None
    assert NodeEvent.objects.count() == 0


def test_a_container_that_shows_another_gpu_is_no_swap(speak: Maker) -> None:
    node = speak("gpu1", {"gpus": ["g1"], "machine_id": "s1"})
    assert speak("gpu1", {"gpus": ["g2"], "machine_id": "s1"}, now=T0 + 9).machine == node.machine
    assert kinds(node) == []


def test_two_names_that_look_like_one_machine_are_none(speak: Maker) -> None:
    """Virtual machines that were copied, number and all."""
    assert speak("gpu1", ONE).machine is not None
    assert speak("gpu2", ONE).machine is None


def test_an_agent_is_believed_only_where_slurm_runs_its_job(speak: Maker) -> None:
    node = speak("gpu1", ONE)
    speak("gpu1", {**OTHER, "serials": ["product_uuid:forged"]}, nodes=["gpu2"], boot_id="b9", now=T0 + 9)
    node.refresh_from_db()
    assert kinds(node) == [] and node.boot_id == "b1" and Machine.objects.count() == 1


def test_a_node_registers_again_with_each_boot(speak: Maker) -> None:
    node = speak("gpu1", {})
    assert node.rebooted_at is None
    again = speak("gpu1", {}, boot_id="b2", now=T0 + 600)
    assert again.rebooted_at == aware(T0 + 600) and kinds(node) == ["rebooted"]
    speak("gpu1", {}, boot_id="b2", now=T0 + 900)
    assert kinds(node) == ["rebooted"]


def test_slurm_names_instances(speak: Maker, cluster: Cluster) -> None:
    node = speak("gpu1", ONE)
    for instance, events in (("i-1", 0), ("i-1", 0), ("i-2", 1)):
        Node.objects.filter(pk=node.pk).update(instance_id=instance)
        if instance == "i-1":
            AgentReport.objects.update(identity_at=None, received_at=aware(T0))
        follow_machines(cluster, T0, polled=True)
        assert node.events.filter(kind="swapped").count() == events
    node.refresh_from_db()
    assert node.machine is not None and node.machine.facts == {"instance": ["i-2"]}
