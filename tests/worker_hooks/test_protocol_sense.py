"""The sensor's wire schema: what was once sent stays readable, and what is broken is refused with its place."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from worker_hooks.protocol.messages import MessageError, Record
from worker_hooks.protocol.sense import Gpu, decode_sense, encode_sense

pytestmark = pytest.mark.pure
GOLDEN = Path(__file__).with_name("golden") / "sense"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def test_a_full_message_says_what_it_says() -> None:
    message = decode_sense(golden("sense-v1-full"))
    assert (message.node, message.stream, message.clock_offset_s) == ("gpu1", "9f2c51d0a7b84c6e", 0.004)
    assert message.gpus == (Gpu("GPU-5c1a3e7e-0000-0000-0000-000000000001", "0000:1b:00"),)
    assert message.readers["nvml"] == "absent" and message.readers["kernel"] == "ok"
    assert message.machine is not None and message.machine.macs == ("02:00:00:00:00:01",)
    assert [record.seq for record in message.records] == [7, 8, 9]
    assert message.records[0].body["attrs"]["number"] == 79


def test_the_least_message_is_enough() -> None:
    message = decode_sense(golden("sense-v1-least"))
    assert message.boot_id is None and message.gpus == () and message.readers == {} and message.records == ()


def test_a_newer_sensors_keys_are_ignored_and_its_records_kept_whole() -> None:
    message = decode_sense(golden("sense-v1-from-a-newer-sensor"))
    assert message.records == (Record(1, "of_tomorrow", 1.5, {"what": {"deep": [1, 2]}}),)
    assert message.readers == {"bmc": "ok"}


def test_encoding_writes_what_the_golden_message_holds() -> None:
    assert encode_sense(decode_sense(golden("sense-v1-full"))) == golden("sense-v1-full")


@pytest.mark.parametrize("name", ["sense-v1-full", "sense-v1-least", "sense-v1-from-a-newer-sensor"])
def test_messages_survive_the_round_trip(name: str) -> None:
    message = decode_sense(golden(name))
    assert decode_sense(json.loads(json.dumps(encode_sense(message), allow_nan=False))) == message


BROKEN = [
    ("protocol", 2, "message.protocol"),
    ("node", "", "message.node"),
    ("node", "n" * 256, "message.node"),
    ("node", None, "message.node"),
    ("stream", " ", "message.stream"),
    ("stream", "s" * 65, "message.stream"),
    ("sent_at", "now", "message.sent_at"),
    ("started_at", 10**400, "message.started_at"),
    ("version", 1, "message.version"),
    ("boot_id", 7, "message.boot_id"),
    ("clock_offset_s", "x", "message.clock_offset_s"),
    ("gpus", {}, "message.gpus"),
    ("gpus", [{"uuid": "u", "pci": "p"}] * 65, "message.gpus"),
    ("gpus.0.uuid", 1, "message.gpus[0].uuid"),
    ("gpus.0.pci", "p" * 33, "message.gpus[0].pci"),
    ("readers", [], "message.readers"),
    ("readers", {str(n): "ok" for n in range(33)}, "message.readers"),
    ("readers.kernel", 1, "message.readers.kernel"),
    ("readers.kernel", "x" * 501, "message.readers.kernel"),
    ("records", {}, "message.records"),
    ("records.0.seq", 0, "message.records[0].seq"),
    ("records.0.code", None, "message.records[0].code"),
    ("records.1.at", None, "message.records[1].at"),
]


@pytest.mark.parametrize(("where", "value", "named"), BROKEN)
def test_what_is_broken_is_refused_by_its_place(where: str, value: object, named: str) -> None:
    data = copy.deepcopy(golden("sense-v1-full"))
    *path, last = [int(key) if key.isdigit() else key for key in where.split(".")]
    place = data
    for key in path:
        place = place[key]
    place[last] = value
    with pytest.raises(MessageError) as caught:
        decode_sense(data)
    assert caught.value.where == named


@pytest.mark.parametrize("key", ["protocol", "node", "stream", "sent_at", "version", "started_at", "records"])
def test_what_is_missing_is_named(key: str) -> None:
    data = golden("sense-v1-least")
    del data[key]
    with pytest.raises(MessageError, match=f"message.{key}"):
        decode_sense(data)


@pytest.mark.parametrize("data", [None, [], "x", 5, {}])
def test_what_is_no_message_at_all(data: object) -> None:
    with pytest.raises(MessageError):
        decode_sense(data)
