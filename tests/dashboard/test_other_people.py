"""Other people on the pages: what a drain waits for, what a reader may not know, machines, expected silence."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client

from controller.models import Cluster, Machine, Node, NodeEvent, NodeHold
from tests.dashboard import rows
from tests.dashboard.reading import Text
from tests.dashboard.story import Story

pytestmark = pytest.mark.db
UNTIL = rows.NOW.replace(hour=14, minute=20, second=9)
BOB = {"job": "88", "user": "bob", "until": UNTIL.timestamp(), "why": ""}
WAITS = "waits for job 88 of bob (until about Sun 29 Nov 14:20 UTC by its time limit)"


@pytest.fixture
def story(db: None) -> Story:
    """gpu-0422 drains, and job 88 of bob runs on it."""
    made = Story(scale=0.02)
    NodeHold.objects.filter(node__name="gpu-0422").update(state="draining")
    occupy(BOB, base_state="MIXED")
    return made


def occupy(*tenants: dict[str, object], **columns: object) -> None:
    Node.objects.filter(name="gpu-0422").update(tenants=list(tenants), jobs=[t["job"] for t in tenants], **columns)


def page(client: Client, address: str = "/nodes/gpu-0422") -> str:
    return Text(client.get(address).text).words


def test_staff_and_bob_read_what_the_drain_waits_for(sign_in: Callable[..., Client], story: Story) -> None:
    for client in (sign_in("root", staff=True), sign_in("bob")):
        assert WAITS in page(client) and "nobody’s job is ended" in page(client)
        assert WAITS in page(client, "/nodes")
        assert "88 of bob" in page(client)


def test_others_read_no_more_than_that_somebody_is_there(sign_in: Callable[..., Client], story: Story) -> None:
    """ada holds the incident, but job 88 is none of hers: not on the node's page, the list, nor her own job's page."""
    ada = sign_in("ada")
    for address in ("/nodes/gpu-0422", "/nodes", f"/jobs/{story.main.run_id}"):
        words = page(ada, address)
        assert "waits for another user’s job" in words
        assert "bob" not in words and "until about" not in words and "job 88" not in words


def test_the_incident_says_it_to_those_who_may_know(sign_in: Callable[..., Client], story: Story) -> None:
    words = page(sign_in("root", staff=True), f"/jobs/{story.main.run_id}")
    assert f"draining, {WAITS}" in words


@pytest.mark.parametrize(
    ("tenants", "base", "flags", "said"),
    [
        ([{**BOB, "until": None}], "MIXED", ["DRAIN"], "waits for job 88 of bob (without a time limit)"),
        ([{**BOB, "why": "suspended"}], "IDLE", ["DRAIN"], "waits for job 88 of bob, which is suspended"),
        ([{**BOB, "why": "completing"}], "IDLE", ["COMPLETING", "DRAIN"], "job 88 of bob, which is ending"),
        ([], "MIXED", ["DRAIN"], "waits for a job that Slurm does not show to Relume"),
        ([], "IDLE", ["COMPLETING", "DRAIN"], "waits for a job that is ending"),
        ([{**BOB, "job": str(n)} for n in range(5)], "MIXED", ["DRAIN"], "job 1 of bob (until about"),
    ],
)
def test_what_it_waits_for(
    sign_in: Callable[..., Client],
    story: Story,
    tenants: list[dict[str, object]],
    base: str,
    flags: list[str],
    said: str,
) -> None:
    occupy(*tenants, base_state=base, flags=flags)
    words = page(sign_in("root", staff=True))
    assert said in words
    assert ("and 3 more jobs" in words) == (len(tenants) == 5)


def test_an_empty_node_waits_for_nothing(sign_in: Callable[..., Client], story: Story) -> None:
    occupy(base_state="IDLE")
    assert "waits for" not in page(sign_in("root", staff=True))


def test_a_node_that_slurm_does_not_show_is_unknown(sign_in: Callable[..., Client], story: Story) -> None:
    Node.objects.filter(name="gpu-0422").update(seen_at=rows.NOW - timedelta(hours=1))
    ada = sign_in("ada")
    assert "it is unknown, not gone" in page(ada) and "waits for" not in page(ada)
    assert "not shown by Slurm: unknown" in page(ada, "/nodes")


def test_expected_silence_is_said(sign_in: Callable[..., Client], story: Story) -> None:
    Node.objects.filter(name="gpu-0411").update(flags=["MAINTENANCE"])
    ada, address = sign_in("ada"), f"/jobs/{story.main.run_id}"
    assert "It is in maintenance: its silence is expected" in page(ada, "/nodes/gpu-0411")
    assert "gpu-0411 is in maintenance: silence from there is expected" in page(ada, address)
    story.main.view = {"base": "SUSPENDED", "flags": []}
    story.main.save()
    assert "Slurm job 771204 is suspended: its silence is expected, and no timer runs." in page(ada, address)
    story.main.view = {"missing": "Slurm does not show it to Relume, and may be hiding it (PrivateData=jobs)"}
    story.main.save()
    assert "may be hiding it (PrivateData=jobs): what it does now is unknown" in page(ada, address)
    story.main.view = {"base": "RUNNING", "flags": []}
    story.main.save()
    Node.objects.filter(name="gpu-0411").update(flags=["PLANNED"])
    assert "expected" not in page(ada, address)


def test_a_hold_made_for_another_machine(sign_in: Callable[..., Client], story: Story) -> None:
    where = Cluster.objects.get()
    times = {"first_seen_at": rows.NOW - timedelta(days=9), "last_seen_at": rows.NOW}
    old, new = (
        Machine.objects.create(cluster=where, facts={"serials": [f"product_uuid:{n}"]}, **times) for n in ("a", "b")
    )
    NodeHold.objects.filter(node__name="gpu-0422").update(machine=old, sticky=True)
    NodeHold.objects.filter(node__name="gpu-0417").update(machine=new, reason="Node lost: gpu-0417")
    Node.objects.filter(name="gpu-0422").update(machine=new)
    NodeEvent.objects.create(
        node=story.nodes["gpu-0422"], at=rows.NOW, kind="swapped", text=f"another machine: {old} before, {new} now"
    )
    staff, ada = page(sign_in("root", staff=True)), page(sign_in("ada"))
    for words in (staff, ada):
        assert f"made for another machine: {old}, and {new} stands here now" in words
        assert f"swapped : another machine: {old} before" in words
        assert "Held as gpu-0417" in words and "only a person clears it" in words
    assert "product_uuid:b" in staff and "product_uuid" not in ada


def test_back_but_not_checked(sign_in: Callable[..., Client], story: Story) -> None:
    NodeHold.objects.filter(node__name="gpu-0422").update(state="returned")
    occupy(base_state="IDLE", flags=[])
    words = page(sign_in("root", staff=True))
    assert "Back, not checked" in words and "nobody has said that it is well" in words


@pytest.mark.parametrize(
    ("kind", "said"),
    [("user", "held by its owner"), ("admin", "an operator, an administrator or root"), ("", "Licenses")],
)
def test_whose_hold_keeps_a_job_in_the_queue(
    sign_in: Callable[..., Client], story: Story, kind: str, said: str
) -> None:
    queued = story.others["queued"]
    queued.view = {"base": "PENDING", "flags": [], "reason": "Licenses", "hold_kind": kind or None}
    queued.save()
    assert said in page(sign_in("ada"), f"/jobs/{queued.run_id}")
