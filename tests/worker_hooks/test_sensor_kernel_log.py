"""`/dev/kmsg` as the kernel serves it, one record a read, on a socket that keeps records apart; escapes and losses.

The overrun (EPIPE) is played by a function in the place of `read`: no real buffer was made to run over.
"""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from worker_hooks.sensor import kernel_log
from worker_hooks.sensor.kernel_log import Device, Position, Record, parse
from worker_hooks.signs.log import KERNEL, LogReader
from worker_hooks.signs.sign import Sign

pytestmark = pytest.mark.pure

XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def record(number: int, text: str, *, micros: int | None = None, flags: str = "-", level: int = 4) -> bytes:
    return f"{level},{number},{number * 1000 if micros is None else micros},{flags};{text}\n".encode()


class Kernel:
    """`says`: the next record. `device`: a reader of it, as after the record `after` and since `since`."""

    def __init__(self) -> None:
        self._mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        theirs.setblocking(False)
        self._theirs = theirs

    def says(self, *records: bytes) -> None:
        for one in records:
            self._mine.send(one)

    def device(self, after: int = -1, since: int = -1) -> Device:
        return Device(os.dup(self._theirs.fileno()), Position(after, after * 1000), since)

    def close(self) -> None:
        self._mine.close()
        self._theirs.close()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    yield made
    made.close()


def numbers(records: list[Record]) -> list[int]:
    return [one.position.number for one in records]


def signs_of(*records: bytes) -> list[Sign]:
    lines = b"".join(one.line() for data in records if (one := parse(data)) is not None)
    reader = LogReader(KERNEL, node="gn1", booted_at=1000.0)
    return [*reader.feed(lines), *reader.close()]


def test_each_record_comes_once_and_nothing_is_waited_for(kernel: Kernel) -> None:
    device = kernel.device()
    assert device.read() == []
    kernel.says(record(7, "eth0: up"), record(8, XID))
    assert [(r.position, r.text) for r in device.read()] == [
        (Position(7, 7000), b"eth0: up"),
        (Position(8, 8000), XID.encode()),
    ]
    assert device.read() == [] and not device.more and device.lost == 0
    assert device.wait_fd is not None
    device.close()


def test_a_reader_goes_on_where_it_stood_and_counts_what_was_overwritten(kernel: Kernel) -> None:
    device = kernel.device(after=5)
    kernel.says(record(4, "old"), record(5, "old"), record(6, "new"), record(10, "newer"))
    assert numbers(device.read()) == [6, 10]
    assert device.lost == 3
    device.close()


def test_a_first_reader_has_lost_nothing_and_tells_no_old_stories(kernel: Kernel) -> None:
    device = kernel.device(since=9000)
    kernel.says(record(8, "before"), record(9, "since"))
    assert numbers(device.read()) == [9]
    assert device.lost == 0
    device.close()


def test_records_of_others_are_no_words_of_the_kernel_and_not_lost_either(kernel: Kernel) -> None:
    device = kernel.device()
    kernel.says(record(1, "a"), record(2, XID, level=12), record(3, XID, level=30), record(4, "b"))
    assert numbers(device.read()) == [1, 4]
    assert device.lost == 0
    device.close()


def test_damaged_records_are_passed_over(kernel: Kernel) -> None:
    device = kernel.device()
    kernel.says(b"4,1", b"\xff\xfe\n", b"x,2,3,-;words\n", b"4,3,3000,-;cut in the mid", record(4, "b"))
    assert [(r.position.number, r.text) for r in device.read()] == [(3, b"cut in the mid"), (4, b"b")]
    device.close()


def scripted(*answers: bytes | OSError) -> Callable[[int, int], bytes]:
    left = list(answers)

    def read(_: int, __: int) -> bytes:
        answer = left.pop(0) if left else BlockingIOError()
        if isinstance(answer, OSError):
            raise answer
        return answer

    return read


def test_an_overrun_is_counted_and_read_over(monkeypatch: pytest.MonkeyPatch) -> None:
    read = scripted(record(1, "a"), BrokenPipeError(), record(500, XID), BrokenPipeError(), BrokenPipeError())
    monkeypatch.setattr(kernel_log, "os", SimpleNamespace(read=read))
    device = Device(-1, Position(), -1)
    assert numbers(device.read()) == [1, 500]
    assert device.lost == 498 and not device.more


def test_a_kernel_that_only_overruns_does_not_keep_the_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def overrun(_: int, __: int) -> bytes:
        raise BrokenPipeError

    monkeypatch.setattr(kernel_log, "os", SimpleNamespace(read=overrun))
    device = Device(-1, Position(), -1)
    assert device.read() == []
    assert device.more, "it is asked again at once"


def test_a_turn_has_an_end_in_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    flood = [record(k, XID) for k in range(kernel_log.TURN_RECORDS + 3)]
    monkeypatch.setattr(kernel_log, "os", SimpleNamespace(read=scripted(*flood)))
    device = Device(-1, Position(), -1)
    assert len(device.read()) == kernel_log.TURN_RECORDS and device.more
    assert len(device.read()) == 3 and not device.more


def test_a_device_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "os", SimpleNamespace(read=scripted(record(1, "a"), OSError(5, "I/O error"))))
    with pytest.raises(OSError, match="I/O error"):
        Device(-1, Position(), -1).read()


@pytest.mark.parametrize("flags", ["-", "c", "+", "-,caller=T1234", "c,caller=C3"])
def test_flags_and_callers_are_no_part_of_the_words(flags: str) -> None:
    assert parse(record(1, XID, flags=flags)) == Record(Position(1, 1000), XID.encode())


def test_the_dictionary_behind_a_record_is_no_line_of_the_kernel() -> None:
    (sign,) = signs_of(record(1, f"mlx5_core 0000:17:00.0 ens1: Link down\n SUBSYSTEM=pci\n DEVICE=+pci:{XID}"))
    assert (sign.code, sign.at) == ("nic.link_down", 1000.001)


def test_a_message_of_several_lines_is_one_record_with_escapes() -> None:
    """As NVIDIA's driver writes it: in /dev/kmsg the ends of its inner lines are told by their numbers."""
    (sign,) = signs_of(
        record(1, r"NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: (PCI ID: 10de:2339) installed in this system has"
                  r"\x0aNVRM: fallen off the bus and is not responding to commands.")
    )  # fmt: skip
    assert (sign.code, sign.attrs["pci"]) == ("xid.79", "0000:b3:00")
    assert "\\x0a" not in sign.raw


def test_backslashes_and_other_letters_are_escaped_too() -> None:
    (sign,) = signs_of(record(1, r"CIFS: VFS: \x5c\x5cfs1.example has not responded in 180 seconds. Reconnecting..."))
    assert (sign.code, sign.attrs["server"]) == ("storage.not_responding", "fs1.example")
    (sign,) = signs_of(record(2, r"INFO: task \xc3\xa9tude:77 blocked for more than 120 seconds."))
    assert sign.attrs["process"] == "étude"


@pytest.mark.parametrize(
    "name",
    [
        XID,
        rf"x\x0a{XID}",
        rf"x\x0d{XID}",
        rf"x\x0a[    1.000000] {XID}",
        rf"x' {XID}",
        r"mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000100134",
        r"EDAC MC0: 1 UE memory read error on CPU_SrcID#0",
        r"nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30",
        r"Kernel panic - not syncing: x",
    ],
)
def test_a_file_that_is_named_like_a_fault_is_none(name: str) -> None:
    """Anybody can start a program of any name, and the kernel writes it down; so with the options of a mount."""
    assert signs_of(record(1, f"process '/tmp/{name}' started with executable stack")) == []
    assert signs_of(record(1, f"overlayfs: failed to resolve '{name}': -2")) == []
    assert signs_of(record(1, f'overlayfs: unrecognized mount option "{name}" or missing value')) == []


def test_a_real_device_is_opened_without_waiting(tmp_path: Path) -> None:
    """/dev/null has nothing to say, as a kernel's log that was read to its end."""
    log = kernel_log.open_log(Path(os.devnull), Position(), 60.0)
    assert isinstance(log, Device) and log.read() == [] and not log.more
    log.close()
    with pytest.raises(OSError):
        kernel_log.open_log(tmp_path / "none", Position(), 60.0).read()
