"""The spool: numbers without gaps, nothing lost when its process or its disk goes, bounded with an honest count."""

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from worker_hooks.agent import spool as module
from worker_hooks.agent.spool import Spool
from worker_hooks.agent.spool_file import Draft, read_spool

pytestmark = pytest.mark.pure

HEADER = {"run_id": "tj-0123456789ab", "generation": 1, "node": "gpu1"}


def event(name: str) -> Draft:
    return Draft("event", 1.0, {"name": name, "rank": None, "data": {}})


def metrics(points: int = 1) -> Draft:
    body: dict[str, Any] = {"rank": 0, "name": "loss", "steps": list(range(points))}
    return Draft("metrics", 2.0, {**body, "times": [1.0] * points, "values": [0.5] * points})


def opened(path: Path, **more: Any) -> Spool:
    return Spool(path, HEADER, **more)


def names(spool: Spool) -> list[tuple[int, str]]:
    return [(record.seq, record.body["name"]) for record in spool.batch(1 << 20, 1000)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool" / "gpu1.g1.jsonl"


def test_a_record_is_sent_only_once_it_is_in_the_file(path: Path) -> None:
    spool = opened(path)
    spool.append([event("a")])
    assert names(spool) == []
    assert spool.flush()
    assert names(spool) == [(1, "a")]


def test_a_successor_goes_on_with_the_numbers(path: Path) -> None:
    first = opened(path)
    first.append([event("a"), event("b"), event("c")], {"events-0.jsonl": 10})
    first.flush()
    first.ack(1)
    first.append([])
    first.flush()  # the process is killed here: no close
    second = opened(path)
    assert names(second) == [(2, "b"), (3, "c")] and second.tailed == {"events-0.jsonl": 10}
    second.append([event("d")])
    second.flush()
    assert names(second) == [(2, "b"), (3, "c"), (4, "d")]


def test_numbers_go_on_even_when_everything_was_acked(path: Path) -> None:
    first = opened(path)
    first.append([event("a"), event("b")])
    first.flush()
    first.ack(2)
    first.flush()
    second = opened(path)
    second.append([event("c")])
    second.flush()
    assert names(second) == [(3, "c")]


def test_a_torn_last_line_is_dropped_and_does_not_spoil_the_next(path: Path) -> None:
    first = opened(path)
    first.append([event("a")])
    first.flush()
    with path.open("ab") as file:
        file.write(b'{"seq":2,"kind":"ev')
    second = opened(path)
    second.append([event("b")])
    second.flush()
    assert names(opened(path)) == [(1, "a"), (2, "b")]


def test_an_ack_beyond_what_was_sent_is_ignored(path: Path) -> None:
    spool = opened(path)
    spool.append([event("a")])
    spool.flush()
    spool.ack(99)
    spool.append([event("b")])
    spool.flush()
    assert names(spool) == [(2, "b")] and spool.acked == 1


def test_batches_are_bounded(path: Path) -> None:
    spool = opened(path)
    spool.append([event(str(i)) for i in range(10)])
    spool.flush()
    assert len(spool.batch(1 << 20, 3)) == 3
    one = path.read_bytes().index(b"\n", path.read_bytes().index(b'"seq":1')) - path.read_bytes().index(b'"seq":1')
    assert len(spool.batch(2 * one + one // 2, 100)) == 2
    assert len(spool.batch(1, 100)) == 1, "one record always fits, or it would never leave"


def test_a_full_spool_drops_metrics_first_and_says_how_many(path: Path) -> None:
    spool = opened(path, limit=1000)
    spool.append([metrics() for _ in range(50)])
    kept = spool.unacked
    spool.append([event("rank_exited")])
    spool.flush()
    assert spool.dropped == 50 - kept and 0 < kept < 50
    assert names(spool)[-1] == (kept + 1, "rank_exited")
    spool.ack(kept + 1)
    spool.append([event("later")])
    spool.flush()
    said, later = spool.batch(1 << 20, 100)
    assert (said.seq, said.body["name"], later.body["name"]) == (kept + 2, "dropped", "later")
    assert said.body["data"]["records"] == said.body["data"]["points"] == 50 - kept


def test_what_was_dropped_is_said_at_the_end_at_the_latest(path: Path) -> None:
    spool = opened(path, limit=300)
    spool.append([metrics() for _ in range(20)])
    spool.close()
    assert json.loads(read_spool(path).lines[-1][1])["name"] == "dropped"


def test_a_file_with_nothing_to_send_is_removed(path: Path) -> None:
    spool = opened(path)
    spool.append([event("a")])
    spool.flush()
    spool.ack(1)
    assert spool.close() and not path.exists()


def test_it_shrinks_when_most_of_it_is_acked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPACT_BYTES", 2000)
    spool = opened(path)
    spool.append([event(str(i)) for i in range(100)])
    spool.flush()
    before = path.stat().st_size
    spool.ack(98)
    spool.append([event("new")])
    spool.flush()
    assert path.stat().st_size < before / 5
    expected = [(99, "98"), (100, "99"), (101, "new")]
    assert names(spool) == names(opened(path)) == expected


def test_a_disk_that_fails_costs_durability_not_records(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(path)
    spool.append([event("a")])
    spool.flush()
    real = os.write

    def half(descriptor: int, data: Any) -> int:
        real(descriptor, bytes(data)[:7])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "write", half)
    spool.append([event("b")])
    assert not spool.flush() and "No space left" in (spool.error or "")
    assert names(spool) == [(1, "a"), (2, "b")], "memory alone has to do"
    monkeypatch.undo()
    spool.append([event("c")])
    assert spool.flush() and spool.error is None
    assert names(opened(path)) == [(1, "a"), (2, "b"), (3, "c")]


def test_a_disk_that_hangs_holds_up_neither_records_nor_posts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(path)
    monkeypatch.setattr(module, "STUCK_S", 0.0)
    hanging, released = threading.Event(), threading.Event()
    real = os.write

    def hang(descriptor: int, data: Any) -> int:
        hanging.set()
        released.wait(30)
        return real(descriptor, data)

    monkeypatch.setattr(module.os, "write", hang)
    spool.append([event("a")])
    writer = threading.Thread(target=spool.flush)
    writer.start()
    assert hanging.wait(30)
    spool.append([event("b")])
    assert names(spool) == [(1, "a"), (2, "b")], "what cannot be written is sent from memory"
    spool.ack(1)
    released.set()
    writer.join(30)
    spool.flush()
    assert names(opened(path)) == [(2, "b")]


def test_what_is_not_json_is_set_aside_under_its_number(path: Path) -> None:
    spool = opened(path)
    spool.append([Draft("event", 1.0, {"name": "x", "data": {"n": float("inf")}}), event("b")])
    spool.flush()
    assert names(spool) == [(1, "set_aside"), (2, "b")]


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file is in the way", encoding="utf-8")
    spool = opened(tmp_path / "spool" / "gpu1.g1.jsonl")
    spool.append([event("a")])
    assert not spool.flush() and str(tmp_path) in (spool.error or "")
    assert names(spool) == [(1, "a")]


def test_a_refused_record_is_replaced_under_its_number(path: Path) -> None:
    spool = opened(path)
    spool.append([event("a"), event("bad")])
    spool.flush()
    refused = spool.replace(2, event("set_aside"))
    assert refused is not None and refused.body["name"] == "bad"
    spool.flush()
    assert names(spool) == names(opened(path)) == [(1, "a"), (2, "set_aside")]
    assert spool.replace(7, event("x")) is None


def test_the_file_is_private(path: Path) -> None:
    spool = opened(path)
    spool.append([event("a")])
    spool.flush()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_hole_in_the_file_is_filled_with_notes(path: Path) -> None:
    """A host that died while writing to a network file system: the records behind the hole still go out."""
    spool = opened(path)
    spool.append([event(name) for name in "abcde"])
    spool.flush()
    lines = path.read_bytes().split(b"\n")
    lines[2] = b"\0" * len(lines[2])
    lines[3] = b"\0" * len(lines[3])
    path.write_bytes(b"\n".join(lines))
    assert names(opened(path)) == [(1, "a"), (2, "set_aside"), (3, "set_aside"), (4, "d"), (5, "e")]


@pytest.mark.parametrize(
    "line",
    [
        '{"seq": 2, "kind": "metrics", "at": "x"}',
        '{"seq": 2, "kind": "event", "at": 1' + "0" * 400 + "}",
        '{"seq": 2, "kind": "event", "at": NaN, "name": "a", "rank": null, "data": {}}',
        '{"seq": true, "kind": "event", "at": 1.0}',
        '{"seq": 1000000000000, "kind": "event", "at": 1.0, "name": "b", "rank": null, "data": {}}',
        '{"acked": 1' + "0" * 40 + "}",
        '{"tailed": {"events-0.jsonl": "x", "events-1.jsonl": -1}}',
        "[" * 100_000,
    ],
    ids=lambda line: line[:50],
)
def test_a_damaged_line_spoils_nothing(path: Path, line: str) -> None:
    spool = opened(path)
    spool.append([event("a")])
    spool.flush()
    with path.open("a") as file:
        file.write(line + "\n")
    again = opened(path)
    again.append([event("z")])
    again.flush()
    assert names(again) == [(1, "a"), (2, "z")]
    assert again.tailed == {}
