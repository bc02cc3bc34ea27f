"""The wire schema: what was once sent stays readable, and what is broken is refused with its place."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from worker_hooks.protocol.answers import Answer, Instruction, decode_answer, encode_answer
from worker_hooks.protocol.messages import (
    Message,
    MessageError,
    Record,
    decode_message,
    decode_number,
    encode_message,
    encode_number,
)
from worker_hooks.protocol.pace import PhasePace

pytestmark = pytest.mark.pure
GOLDEN = Path(__file__).with_name("golden") / "messages"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def test_a_full_message_says_what_it_says() -> None:
    message = decode_message(golden("message-v1-full"))
    assert (message.run_id, message.generation, message.node) == ("tj-4f2a9c0b11de", 2, "gpu1")
    assert (message.job.nodes, message.agent.probe_port, message.agent.clock_offset_s) == ("gpu[1-2]", 43121, 0.004)
    assert message.ranks[0].step == 120 and message.ranks[1].signal == 9 and message.ranks[1].phase is None
    assert [record.seq for record in message.records] == list(range(41, 48))
    assert message.records[0].body["values"] == [2.5, "NaN", "-Infinity"]
    assert message.records[5] == Record(
        46,
        "probe",
        1796000100.2,
        {"id": "p-1", "node": "gpu2", "address": "10.77.0.2", "port": 43120, "outcome": "timeout"},
    )


def test_the_least_message_is_enough() -> None:
    message = decode_message(golden("message-v1-least"))
    assert message.agent.probe_port is None and message.boot_id is None and message.records == ()


def test_a_newer_agents_keys_are_ignored_and_its_records_kept_whole() -> None:
    message = decode_message(golden("message-v1-from-a-newer-agent"))
    tomorrow, moon = message.records
    assert tomorrow == Record(1, "of_tomorrow", 1.5, {"what": {"deep": [1, 2]}})
    assert moon.body == {"name": "moon_landed", "rank": None, "data": {"crew": 3}, "extra": True}


@pytest.mark.parametrize(
    "name",
    ["message-v1-full", "message-v1-least", "message-v1-from-a-newer-agent", "message-v1-pace", "message-v1-sign"],
)
def test_messages_survive_the_round_trip(name: str) -> None:
    message = decode_message(golden(name))
    assert decode_message(json.loads(json.dumps(encode_message(message), allow_nan=False))) == message


@pytest.mark.parametrize("name", ["message-v1-full", "message-v1-pace", "message-v1-sign"])
def test_encoding_writes_what_the_golden_message_holds(name: str) -> None:
    assert encode_message(decode_message(golden(name))) == golden(name)


def test_a_ranks_pace_is_read() -> None:
    pace = decode_message(golden("message-v1-pace")).ranks[0].pace
    assert pace is not None and (pace.steps, pace.step_median_s, pace.first_step_s) == (119, 0.51, 41.0)
    assert pace.phases["saving"] == PhasePace(count=3, median_s=2.0, longest_s=2.5)


@pytest.mark.parametrize("pace", [None, 5, [], "fast"])
def test_what_is_no_pace_is_left_out(pace: object) -> None:
    data = golden("message-v1-pace")
    data["ranks"][0]["pace"] = pace
    assert decode_message(data).ranks[0].pace is None


@pytest.mark.parametrize("odd", [-1.0, math.nan, math.inf, True, "1", None, 10**400])
def test_what_is_not_understood_in_a_pace_refuses_no_message(odd: object) -> None:
    data = golden("message-v1-pace")
    told = data["ranks"][0]["pace"]
    told |= {"step_median_s": odd, "steps": odd, "of_tomorrow": {"deep": 1}}
    told["phases"] |= {"saving": {"count": 3, "median_s": odd, "longest_s": 1.0}, "dreaming": told["phases"]["loading"]}
    pace = decode_message(data).ranks[0].pace
    assert pace is not None and pace.step_median_s is None and pace.step_recent_s == 0.5
    assert list(pace.phases) == ["loading"]


SIGN = "message.records[0]"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"node": 5}, "node"),
        ({"node": "n" * 256}, "node"),
        ({"rank": -1}, "rank"),
        ({"rank": True}, "rank"),
        ({"count": 0}, "count"),
        ({"count": 2.5}, "count"),
        ({"last_at": "now"}, "last_at"),
        ({"last_at": math.nan}, "last_at"),
        ({"attrs": []}, "attrs"),
        ({"attrs": {str(i): i for i in range(33)}}, "attrs"),
        ({"attrs": {"n" * 65: 1}}, "attrs"),
        ({"attrs": {"text": "x" * 2049}}, "attrs.text"),
        ({"attrs": {"number": 1 << 63}}, "attrs.number"),
        ({"attrs": {"per_s": math.inf}}, "attrs.per_s"),
        ({"attrs": {"deep": {"no": 1}}}, "attrs.deep"),
        ({"attrs": {"gone": None}}, "attrs.gone"),
    ],
)
def test_what_is_broken_in_a_sign_is_refused_by_its_place(change: dict[str, object], named: str) -> None:
    data = golden("message-v1-sign")
    data["records"][0] |= change
    with pytest.raises(MessageError) as caught:
        decode_message(data)
    assert caught.value.where == f"{SIGN}.{named}"


@pytest.mark.parametrize("key", ["node", "rank", "attrs", "count", "last_at"])
def test_what_a_sign_need_not_carry(key: str) -> None:
    data = golden("message-v1-sign")
    data["records"][1] |= {key: None}
    assert decode_message(data).records[1].body[key] is None
    del data["records"][1][key]
    assert key not in decode_message(data).records[1].body


def test_answers() -> None:
    data = golden("answer-v1")
    answer = decode_answer(data)
    assert answer.acked == 41 and answer.checkpoint_interval_s is None
    assert [instruction.kind for instruction in answer.instructions] == ["probe", "stop", "superseded", "of_tomorrow"]
    assert answer.instructions[3] == Instruction("of_tomorrow", {"speed": 3})
    assert encode_answer(answer) == data
    assert decode_answer(encode_answer(Answer(0, 1.0))) == Answer(0, 1.0)


BROKEN = [
    ("protocol", 2, "message.protocol"),
    ("protocol", True, "message.protocol"),
    ("run_id", "../../etc", "message.run_id"),
    ("run_id", "tj-4F2A9C0B11DE", "message.run_id"),
    ("generation", 0, "message.generation"),
    ("generation", 1.0, "message.generation"),
    ("node", "n" * 256, "message.node"),
    ("node", None, "message.node"),
    ("sent_at", "now", "message.sent_at"),
    ("sent_at", math.nan, "message.sent_at"),
    ("sent_at", math.inf, "message.sent_at"),
    ("sent_at", 10**400, "message.sent_at"),
    ("job", [], "message.job"),
    ("job.restart_count", -1, "message.job.restart_count"),
    ("job.slurm_job_id", 7, "message.job.slurm_job_id"),
    ("agent.state", "asleep", "message.agent.state"),
    ("agent.leader", 1, "message.agent.leader"),
    ("agent.addresses", None, "message.agent.addresses"),
    ("agent.probe_port", "x", "message.agent.probe_port"),
    ("agent.clock_offset_s", math.nan, "message.agent.clock_offset_s"),
    ("ranks", {}, "message.ranks"),
    ("ranks.0", 5, "message.ranks[0]"),
    ("ranks.1.rank", -1, "message.ranks[1].rank"),
    ("ranks.0.phase", "dreaming", "message.ranks[0].phase"),
    ("ranks.0.step", 1 << 63, "message.ranks[0].step"),
    ("records.0.seq", 0, "message.records[0].seq"),
    ("records.0.steps", [1, 2], "message.records[0]"),
    ("records.0.steps.1", -1, "message.records[0].steps[1]"),
    ("records.0.steps.1", True, "message.records[0].steps[1]"),
    ("records.0.values.2", "inf", "message.records[0].values[2]"),
    ("records.0.values.2", None, "message.records[0].values[2]"),
    ("records.0.values.2", 10**400, "message.records[0].values[2]"),
    ("records.0.times.0", "NaN", "message.records[0].times[0]"),
    ("records.1.data", None, "message.records[1].data"),
    ("records.1.name", 4, "message.records[1].name"),
    ("records.2.state", "maybe", "message.records[2].state"),
    ("records.3.checks.0.outcome", "pass", "message.records[3].checks[0].outcome"),
    ("records.3.outcome", "pass", "message.records[3].outcome"),
    ("records.4.raw", "x" * 8193, "message.records[4].raw"),
    ("records.5.outcome", "dead", "message.records[5].outcome"),
    ("records.6.total_steps", "many", "message.records[6].total_steps"),
    ("records.6.at", None, "message.records[6].at"),
]


@pytest.mark.parametrize(("where", "value", "named"), BROKEN)
def test_what_is_broken_is_refused_by_its_place(where: str, value: object, named: str) -> None:
    data = copy.deepcopy(golden("message-v1-full"))
    *path, last = [int(key) if key.isdigit() else key for key in where.split(".")]
    place = data
    for key in path:
        place = place[key]
    place[last] = value
    with pytest.raises(MessageError) as caught:
        decode_message(data)
    assert caught.value.where == named


@pytest.mark.parametrize(
    "key", ["protocol", "run_id", "generation", "node", "sent_at", "job", "agent", "ranks", "records"]
)
def test_what_is_missing_is_named(key: str) -> None:
    data = golden("message-v1-least")
    del data[key]
    with pytest.raises(MessageError, match=f"message.{key}"):
        decode_message(data)


@pytest.mark.parametrize("data", [None, [], "x", 5, {}])
def test_what_is_no_message_at_all(data: object) -> None:
    with pytest.raises(MessageError):
        decode_message(data)
    with pytest.raises(MessageError):
        decode_answer(data)


@pytest.mark.parametrize("value", [0.1, -3.0, math.inf, -math.inf, 5e-324])
def test_numbers_survive_the_round_trip(value: float) -> None:
    assert decode_number(json.loads(json.dumps(encode_number(value), allow_nan=False)), "x") == value


def test_not_a_number_survives_too() -> None:
    assert math.isnan(decode_number(encode_number(math.nan), "x"))


def test_a_message_is_a_value() -> None:
    message = decode_message(golden("message-v1-least"))
    assert message == decode_message(golden("message-v1-least")) and isinstance(message, Message)
