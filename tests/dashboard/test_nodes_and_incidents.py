"""Nodes in Slurm's spelling with who holds them, and the list of incidents."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client

from controller.models import Incident, Node, NodeHold
from tests.dashboard import rows
from tests.dashboard.reading import Text
from tests.dashboard.story import Story

pytestmark = pytest.mark.db


@pytest.fixture
def story(db: None) -> Story:
    return Story(scale=0.02)


@pytest.fixture
def ada(sign_in: Callable[..., Client]) -> Client:
    return sign_in("ada")


def names(html: str) -> list[str]:
    return re.findall(r'class="mono">([^<]*)</a></td>', html)


def test_held_nodes_come_first_with_state_reason_and_incident(ada: Client, story: Story) -> None:
    html = ada.get("/nodes").text
    assert names(html)[:3] == ["gpu-0417", "gpu-0422", "gpu-0410"] and len(names(html)) == 24
    words = Text(html).words
    assert "gpu-0417 DOWN DRAIN NOT_RESPONDING Drained" in words
    assert "2 of at most 4; 2 held by Relume" in words
    assert f'href="/incidents/{story.incident.pk}"' in html


def test_somebody_elses_drain_is_called_so(ada: Client, story: Story) -> None:
    Node.objects.filter(name="gpu-0411").update(flags=["DRAIN"], reason="kernel <update>", reason_user="root")
    other = story.nodes["gpu-0412"]
    NodeHold.objects.create(
        node=other, state="draining", token="t-1", adopted=True, reason="x", created_at=rows.NOW, state_at=rows.NOW
    )
    words = Text(ada.get("/nodes").text).words
    assert "gpu-0411 ALLOCATED DRAIN Not ours" in words and "“kernel <update>” by root" in words
    assert "gpu-0412 ALLOCATED Not ours" in words


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("q=gpu-[0410-0411,0433]", ["gpu-0410", "gpu-0411", "gpu-0433"]),
        ("q=0422", ["gpu-0422"]),
        ("only=held", ["gpu-0417", "gpu-0422"]),
        ("only=down", ["gpu-0417"]),
        ("only=held&q=0422", ["gpu-0422"]),
        ("q=nothing", []),
    ],
)
def test_nodes_are_found_by_name_and_host_list(ada: Client, story: Story, query: str, expected: list[str]) -> None:
    assert names(ada.get(f"/nodes?{query}").text) == expected


def test_a_broken_host_list_is_said(ada: Client, story: Story) -> None:
    words = Text(ada.get("/nodes?q=gpu-[0410-").text).words
    assert "That is not a host list" in words and "None of the 24 nodes matches." in words


def test_paging_shows_every_node_once(ada: Client, story: Story) -> None:
    made = [Node(cluster=story.cluster, name=f"n{k:03}", base_state="IDLE", seen_at=rows.NOW) for k in range(230)]
    Node.objects.bulk_create(made)
    seen: list[str] = []
    address: str | None = "/nodes"
    while address:
        html = ada.get(address).text
        seen += names(html)
        more = re.search(r'href="(\?[^"]*older=[^"]*)" rel="next"', html)
        address = "/nodes" + more[1].replace("&amp;", "&") if more else None
    assert len(seen) == len(set(seen)) == 254


def test_the_node_list_costs_the_same_for_any_number(
    ada: Client, story: Story, django_assert_max_num_queries: Callable[..., object]
) -> None:
    for node in Node.objects.exclude(holds__state="drained"):
        NodeHold.objects.create(
            node=node, incident=story.incident, state="drained", token=node.name, reason="x",
            created_at=rows.NOW, state_at=rows.NOW,
        )  # fmt: skip
    with django_assert_max_num_queries(14):  # type: ignore[attr-defined]
        ada.get("/nodes")


def test_a_node_has_its_history(ada: Client, story: Story) -> None:
    NodeHold.objects.create(
        node=story.nodes["gpu-0422"], state="released", token="h-old", reason="Fabric: link down twice",
        created_at=rows.NOW - timedelta(days=40), state_at=rows.NOW, ended_at=rows.NOW - timedelta(days=38),
        ended_by="root", ended_reason="Transceiver replaced, ticket 5518",
    )  # fmt: skip
    words = Text(ada.get("/nodes/gpu-0422").text).words
    assert "relume:h-0422 Node lost: gpu-0422" in words and "still held" in words
    assert "Transceiver replaced, ticket 5518 root" in words
    assert "controller 10.77.4.22:6818 timeout" in words
    assert f"Incident {story.incident.pk} : Node lost: gpu-0422" in words
    assert ada.get("/nodes/gpu-9999").status_code == 404


def test_incidents_newest_first_with_what_they_cost(ada: Client, story: Story) -> None:
    html = ada.get("/incidents").text
    words = Text(html).words
    assert "3 not over, 5 in all" in words
    assert "Resolved and verified Node lost: gpu-0422 mosaic-7b-pretrain" in words
    assert "5 steps repeated, 19.0 GPU-hours" in words
    only = Text(ada.get("/incidents?state=live").text).words
    assert "mosaic-7b-pretrain" not in only and "protein-lm-3b" in only


def test_incidents_are_paged_by_key(ada: Client, story: Story) -> None:
    for k in range(60):
        story.incident_of(story.attempts[0], rows.NOW - timedelta(minutes=k // 2), f"Node lost: n{k}", f"n{k}", "why")
    first = ada.get("/incidents").text
    older = re.search(r'href="(\?[^"]*older=[^"]*)" rel="next"', first)
    assert older is not None
    second = ada.get("/incidents" + older[1]).text
    found = [re.findall(r'<tr id="row-(\d+)"', html) for html in (first, second)]
    assert len(found[0]) == 50 and len(set(found[0] + found[1])) == Incident.objects.count() == 65
    assert ada.get("/incidents?older=x").status_code == 200
