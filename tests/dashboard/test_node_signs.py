"""The page of a node: its sensor, what that can read, and the signs seen there, each to whom may see it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from controller.clock import utcnow
from controller.models import NodeSensor, Sign
from tests.dashboard.reading import Text
from tests.dashboard.story import Story

pytestmark = pytest.mark.db

PAGE = "/nodes/gpu-0422"
RAW = "NVRM: Xid (PCI:0000:9b:00): 79, pid=88, name=secret-of-bob, GPU has fallen off the bus."


@pytest.fixture
def story(db: None) -> Story:
    return Story(scale=0.02)


def sensor(story: Story, **more: Any) -> NodeSensor:
    readers = {"kernel": "ok", "nvml": "absent", "infiniband": "permission denied \x1b[31m"}
    plain = {"token_digest": "sha256:1", "created_at": story.now, "received_at": utcnow(), "readers": readers}
    return NodeSensor.objects.create(cluster=story.cluster, node="gpu-0422", **(plain | more))


def sign(story: Story, **more: Any) -> Sign:
    plain: dict[str, Any] = {
        "origin": "sensor",
        "reporter": "gpu-0422",
        "stream": "s1",
        "seq": Sign.objects.count() + 1,
        "node": "gpu-0422",
        "code": "xid.79",
        "layer": "kernel",
        "source": "kernel",
        "raw": RAW,
        "observed_at": story.now,
        "received_at": story.now,
    }
    return Sign.objects.create(cluster=story.cluster, **(plain | more))


def words(client: Client) -> str:
    return Text(client.get(PAGE).text).words


def test_no_sensor_means_unknown_and_says_how_to_make_one(sign_in: Callable[..., Client], story: Story) -> None:
    said = words(sign_in("ada"))
    assert "no sensor on this node" in said and "unknown to Relume, not clean" in said
    assert "create_sensor_token gpu-0422" in said


def test_the_sensor_says_what_it_can_read(sign_in: Callable[..., Client], story: Story) -> None:
    sensor(story, left_out=1200)
    text = sign_in("ada").get(PAGE).text
    said = Text(text).words
    assert "Sensor and signs Heard last word" in said
    assert "infiniband cannot read: permission denied" in said and "\x1b" not in text
    assert "kernel reads" in said and "nvml no such hardware" in said
    assert "1,200 signs were dropped" in said


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"received_at": None}, "Never heard made, and not heard yet"),
        ({"received_at": utcnow() - timedelta(minutes=5)}, "Silent last word"),
        ({"token_digest": ""}, "Its credential was revoked"),
    ],
)
def test_a_sensor_that_does_not_speak_is_said(
    sign_in: Callable[..., Client], story: Story, more: dict[str, Any], expected: str
) -> None:
    sensor(story, **more)
    assert expected in words(sign_in("ada"))


def test_signs_have_their_meaning_and_staff_sees_the_line(sign_in: Callable[..., Client], story: Story) -> None:
    sign(story, sensor=sensor(story), count=1204, last_at=story.now + timedelta(seconds=5))
    ada, root = words(sign_in("ada")), words(sign_in("root", staff=True))
    assert "xid.79 × 1,204 in 5.0 s" in ada and "the node’s sensor" in ada
    assert "secret-of-bob" not in ada, "a kernel line may name another user's process"
    assert RAW in root


def test_what_a_job_said_is_for_those_who_may_open_it(sign_in: Callable[..., Client], story: Story) -> None:
    sensor(story)
    sign(story, origin="job", sensor=None, attempt=story.attempts[1], code="cuda.error", layer="process",
         raw="CUDA error in mosaic.py", stream="")  # fmt: skip
    assert "CUDA error in mosaic.py" in words(sign_in("ada"))
    assert "cuda.error" not in words(sign_in("bob")) and "No sign of the last days" in words(sign_in("eve"))


def test_the_newest_signs_are_shown(sign_in: Callable[..., Client], story: Story) -> None:
    made = sensor(story)
    for k in range(30):
        sign(story, sensor=made, code=f"xid.{100 + k}", observed_at=story.now + timedelta(seconds=k))
    said = words(sign_in("ada"))
    assert "xid.129" in said and "xid.110" in said and "xid.109" not in said
