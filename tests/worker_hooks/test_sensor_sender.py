"""What the sensor makes of each answer: nothing is lost that could be taken, nothing is tried for ever that cannot.

Turns are made by hand, so that no test waits for what a turn asks to wait.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from worker_hooks.agent.spool_file import Draft
from worker_hooks.agent.transport import HttpAnswer, TransportError
from worker_hooks.protocol.messages import Record
from worker_hooks.protocol.sense import SENSE, SenseMessage, decode_sense
from worker_hooks.sensor import sender
from worker_hooks.sensor.kernel_log import Position
from worker_hooks.sensor.sender import REFUSED_WAIT_S, Sender
from worker_hooks.sensor.stream import Stream

pytestmark = pytest.mark.pure

Answering = Callable[[SenseMessage, bytes], HttpAnswer | None]


class Desk:
    """The controller: keeps records by stream and number as ingest does; `answering` may answer something else."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kept: dict[str, dict[int, Record]] = {}
        self.conflicts: list[int] = []
        self.posts: list[int] = []
        self.said: list[str] = []
        self.answering: Answering = lambda message, body: None
        self.stream = Stream(folder, "gn1")
        self.sender = Sender("http://x", "t", 5.0, self.stream, self._message, self.said.append)
        monkeypatch.setattr(sender, "post_json", self._post)

    def signs(self, names: list[str]) -> None:
        drafts = [Draft("event", 1.0, {"name": name, "rank": None, "data": {}}) for name in names]
        self.stream.add(drafts, "boot", Position(1, 1))
        self.stream.spool.flush()

    def turns(self, most: int = 200) -> float:
        """Until nothing waits; the seconds that the last turn asks to wait."""
        for _ in range(most):
            wait = self.sender._turn()
            self.stream.spool.flush()
            if not self.stream.spool.unacked:
                return wait
        raise AssertionError(f"{self.stream.spool.unacked} records still wait")

    def names(self) -> list[str]:
        return [record.body["name"] for _, record in sorted(self.kept.get(self.stream.name, {}).items())]

    def _message(self, records: tuple[Record, ...], offset: float | None) -> SenseMessage:
        return SenseMessage("gn1", self.stream.name, 1.0, "1", 1.0, clock_offset_s=offset, records=records)

    def _post(self, url: str, path: str, token: str, body: bytes, limit_s: float) -> HttpAnswer:
        assert (path, token) == (SENSE, "t") and 0 < limit_s <= 3.0
        message = decode_sense(json.loads(body))
        self.posts.append(len(message.records))
        other = self.answering(message, body)
        if other is not None:
            return other
        kept = self.kept.setdefault(message.stream, {})
        for record in message.records:
            if kept.setdefault(record.seq, record) != record:
                self.conflicts.append(record.seq)
        acked = 0
        while acked + 1 in kept:
            acked += 1
        return ok(acked)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def ok(acked: int) -> HttpAnswer:
    return HttpAnswer(200, {"protocol": 1, "acked": acked, "server_time": 1.0, "instructions": [], "pace_s": 1.0}, None)


def refused(status: int, where: str = "", retry_after_s: float | None = None) -> HttpAnswer:
    return HttpAnswer(status, {"what": "no", "where": where}, retry_after_s)


def bad(*names: str, where: str = "message.records[{}].name") -> Answering:
    """As the controller: the first record that cannot be taken is named, and nothing of the message is kept."""

    def answer(message: SenseMessage, body: bytes) -> HttpAnswer | None:
        places = [place for place, record in enumerate(message.records) if record.body["name"] in names]
        return refused(400, where.format(places[0])) if places else None

    return answer


NAMES = [f"n{number}" for number in range(300)]


@pytest.mark.parametrize(("status", "asked_s"), [(429, 7.0), (503, 2.0), (503, None), (500, None), (502, None)])
def test_a_busy_controller_is_waited_for_as_it_asks(desk: Desk, status: int, asked_s: float | None) -> None:
    desk.signs(NAMES)
    desk.answering = lambda message, body: refused(status, retry_after_s=asked_s)
    waits = [desk.sender._turn() for _ in range(6)]
    assert all(wait >= (asked_s or 0.1) and wait <= (asked_s or 0.0) + 5.0 for wait in waits)
    assert desk.stream.spool.unacked == 300
    assert desk.said == [f"the controller answered {status}; signs are kept"]
    desk.answering = lambda message, body: None
    desk.turns()
    assert desk.names() == NAMES and desk.conflicts == []
    assert desk.said[1:] == ["the controller answers again"]


@pytest.mark.parametrize(
    "data",
    [None, [], "ok", 7, {}, {"acked": 3}, {"protocol": 1, "acked": "3", "server_time": 1.0, "instructions": []},
     {"protocol": 1, "acked": True, "server_time": 1.0, "instructions": []},
     {"protocol": 1, "acked": 300, "server_time": "NaN", "instructions": 5}],
)  # fmt: skip
def test_an_answer_that_is_none_acknowledges_nothing(desk: Desk, data: Any) -> None:
    desk.signs(NAMES)
    desk.sender._turn()
    desk.answering = lambda message, body: HttpAnswer(200, data, None)
    for _ in range(3):
        assert desk.sender._turn() >= 0.1
    assert desk.stream.spool.unacked == 300
    desk.answering = lambda message, body: None
    desk.turns()
    assert desk.names() == NAMES


def test_a_controller_that_is_away_keeps_everything(desk: Desk) -> None:
    desk.signs(NAMES)

    def away(message: SenseMessage, body: bytes) -> HttpAnswer:
        raise TransportError("refused")

    desk.answering = away
    assert max(desk.sender._turn() for _ in range(40)) <= 5.0
    desk.answering = lambda message, body: None
    desk.turns()
    assert desk.names() == NAMES


@pytest.mark.parametrize("where", ["message.records[{}].name", "record 138.rank", "body", ""])
def test_one_bad_record_is_found_by_halving_and_costs_no_other(desk: Desk, where: str) -> None:
    desk.signs(NAMES)
    desk.answering = bad("n137", where=where)
    desk.turns()
    assert [name for name in desk.names() if name != "set_aside"] == [n for n in NAMES if n != "n137"]
    note = desk.kept[desk.stream.name][138]
    assert note.body["name"] == "set_aside" and where.format(0) in note.body["data"]["reason"]
    assert len(desk.posts) < 40 and desk.conflicts == []
    (line,) = [line for line in desk.said if "set aside" in line]
    assert line.startswith("record 138 was rejected and set aside: ")


def test_many_bad_records_among_good_ones(desk: Desk) -> None:
    poison = NAMES[::7]
    desk.signs(NAMES)
    desk.answering = bad(*poison)
    desk.turns(most=2000)
    assert [name for name in desk.names() if name != "set_aside"] == [n for n in NAMES if n not in poison]
    assert desk.names().count("set_aside") == len(poison) and desk.conflicts == []


def test_a_body_that_is_too_long_goes_in_pieces(desk: Desk) -> None:
    """A proxy with a lower limit than ours."""
    desk.signs([*NAMES, "x" * 4000, *NAMES])
    desk.answering = lambda message, body: refused(413, "body") if len(body) > 4000 else None
    desk.turns(most=2000)
    assert [name for name in desk.names() if name != "set_aside"] == [*NAMES, *NAMES]
    assert desk.names().count("set_aside") == 1


@pytest.mark.parametrize("where", ["message.sent_at", "message.readers", "message.machine.pid"])
def test_no_record_is_given_up_for_a_complaint_about_the_rest(desk: Desk, where: str) -> None:
    desk.signs(NAMES)
    desk.sender._turn()
    desk.answering = lambda message, body: refused(400, where)
    for _ in range(20):
        assert desk.sender._turn() >= REFUSED_WAIT_S / 2
    desk.answering = lambda message, body: None
    desk.turns()
    assert desk.names() == NAMES
    assert sum("refuses this sensor" in line for line in desk.said) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_sensor_asks_seldom_and_keeps_everything(desk: Desk, status: int) -> None:
    desk.signs(NAMES)
    desk.answering = lambda message, body: refused(status)
    assert min(desk.sender._turn() for _ in range(20)) >= REFUSED_WAIT_S / 2
    desk.answering = lambda message, body: None
    desk.turns()
    assert desk.names() == NAMES


def test_a_controller_that_takes_not_even_a_note_is_asked_seldom(desk: Desk) -> None:
    desk.signs(["n0", "n1"])
    desk.answering = bad("n0", "set_aside")
    waits = [desk.sender._turn() for _ in range(10)]
    assert min(waits[-5:]) >= REFUSED_WAIT_S
    assert sum("was rejected and set aside" in line for line in desk.said) == 1, "not a note in place of a note"
    desk.answering = lambda message, body: None
    desk.turns()
    assert desk.names() == ["set_aside", "n1"]


def test_the_first_message_asks_whose_the_stream_is(desk: Desk) -> None:
    """The disk lost what the controller has: its numbers are taken, and what waits goes out under others."""
    desk.signs(["n0", "n1"])
    old = desk.stream.name
    desk.stream.loaded = 0  # as after a restart with an empty file
    desk.kept[old] = {k: Record(k, "event", 0.0, {"name": f"before{k}", "rank": None, "data": {}}) for k in (1, 2, 3)}
    desk.turns()
    assert desk.posts[0] == 0 and desk.conflicts == []
    assert desk.stream.name != old and desk.names() == ["n0", "n1"]
    assert any("a new stream begins" in line for line in desk.said)


def test_the_thread_outlives_a_mistake_of_its_own(desk: Desk) -> None:
    desk.signs(["n0"])
    right = desk.sender.message

    def wrong(records: tuple[Record, ...], offset: float | None) -> SenseMessage:
        raise ZeroDivisionError("x")

    desk.sender.message = wrong
    assert desk.sender._guarded_turn() >= 0.1
    assert desk.said == ["the sensor cannot send: ZeroDivisionError: x; signs are kept"]
    desk.sender.message = right
    desk.turns()
    assert desk.names() == ["n0"]
