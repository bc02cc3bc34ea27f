"""The sensor's spool goes on over restarts, and begins anew where the controller knows records that the disk lost."""

from pathlib import Path

import pytest

from worker_hooks.agent.spool import Spool
from worker_hooks.agent.spool_file import Draft
from worker_hooks.protocol.messages import Record
from worker_hooks.sensor.kernel_log import Position
from worker_hooks.sensor.stream import FILE, Stream

pytestmark = pytest.mark.pure

BOOT = "boot-1"


def draft(number: int) -> Draft:
    return Draft("event", float(number), {"name": f"n{number}", "rank": None, "data": {}})


def waiting(stream: Stream) -> list[tuple[int, str]]:
    return [(record.seq, record.body["name"]) for record in stream.spool.batch(1 << 20, 1000)]


def filled(folder: Path, count: int) -> Stream:
    stream = Stream(folder, "gn1")
    stream.add([draft(number) for number in range(1, count + 1)], BOOT, Position(40 + count, 9000 + count))
    stream.spool.flush()
    return stream


def test_a_restart_goes_on_with_the_same_stream_numbers_and_place(tmp_path: Path) -> None:
    first = filled(tmp_path, 3)
    first.spool.ack(1)
    first.spool.flush()
    again = Stream(tmp_path, "gn1")
    assert (again.name, again.loaded, again.position(BOOT)) == (first.name, 3, Position(43, 9003))
    assert waiting(again) == [(2, "n2"), (3, "n3")]
    assert again.position("boot-2") == Position(), "another boot numbers from the beginning"


def test_what_waits_goes_on_under_a_new_stream(tmp_path: Path) -> None:
    stream = filled(tmp_path, 4)
    stream.spool.ack(1)
    old = stream.name
    stream.renew()
    assert stream.name != old
    assert waiting(stream) == [(1, "n2"), (2, "n3"), (3, "n4")]
    assert stream.position(BOOT) == Position(44, 9004)
    assert old in (tmp_path / FILE).with_suffix(".aside").read_text()
    again = Stream(tmp_path, "gn1")
    assert (again.name, waiting(again), again.position(BOOT)) == (stream.name, waiting(stream), Position(44, 9004))


def test_a_sign_that_comes_while_the_stream_changes_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = filled(tmp_path, 2)
    flush, came = Spool.flush, []

    def between(spool: Spool, sync: bool = False) -> bool:
        done = flush(spool, sync)
        if not came:
            came.append(True)
            stream.add([draft(3)], BOOT, Position(99, 9999))
        return done

    monkeypatch.setattr(Spool, "flush", between)
    stream.renew()
    assert waiting(stream) == [(1, "n1"), (2, "n2"), (3, "n3")]
    assert stream.position(BOOT) == Position(99, 9999)


def test_a_stream_with_nothing_to_send_is_renewed_too(tmp_path: Path) -> None:
    stream = filled(tmp_path, 2)
    stream.spool.ack(2)
    stream.renew()
    assert waiting(stream) == [] and stream.position(BOOT) == Position(42, 9002)
    stream.add([draft(7)], BOOT, Position(50, 9900))
    stream.spool.flush()
    assert waiting(stream) == [(1, "n7")]


@pytest.mark.parametrize("content", [b"", b"no json\n", b"\0" * 4096, b'{"spool": 1, "stream": 5}\n', b'["spool"]\n'])
def test_a_file_that_is_no_stream_is_put_aside(content: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(content)
    stream = Stream(tmp_path, "gn1")
    assert len(stream.name) == 32 and stream.loaded == 0
    stream.add([draft(1)], BOOT, Position(1, 1))
    assert stream.spool.flush()
    assert (tmp_path / FILE).with_suffix(".aside").read_bytes() == content
    assert waiting(stream) == [(1, "n1")]


def test_a_disk_that_cannot_be_written_keeps_nothing_back(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")  # where the folder should be
    stream = Stream(blocked / "spool", "gn1")
    stream.add([draft(1), draft(2)], BOOT, Position(1, 1))
    assert not stream.spool.flush()
    stream.renew()
    records: list[Record] = stream.spool.batch(1 << 20, 10)
    assert [record.body["name"] for record in records] == ["n1", "n2"]
