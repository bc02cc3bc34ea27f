"""The kernel's records, from `/dev/kmsg` or from a file of such records, each exactly once.

    4,17,81234567890,-;NVRM: Xid (PCI:0000:1b:00): 79, ...
    level and facility, number of the record, microseconds since boot, flags; then the text, where what is not plain
    ASCII, backslash and the ends of inner lines are `\\x` and two digits

Only the kernel's own records count: what a process writes into `/dev/kmsg` carries another facility, which it cannot
choose to be the kernel's. Run on a real `/dev/kmsg` without a GPU driver, and on files of such records.
"""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

RECORD_BYTES = 8192
TURN_RECORDS = 4096  # in one turn, so that a flood does not keep the sensor from its other work
FILE_BYTES = 1 << 20
FILE_PAUSE_S = 0.2
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_RECORD = re.compile(rb"(\d+),(\d+),(\d+),[^;\n]*;([^\n]*)")


@dataclass(frozen=True)
class Position:
    """The last record that was read: its number and its microseconds since boot."""

    number: int = -1
    micros: int = -1


@dataclass(frozen=True)
class Record:
    position: Position
    text: bytes

    def line(self) -> bytes:
        """As dmesg shows it, so that LogReader reads the time; but a record stays one line, since a name in it that
        anybody may choose could hold the end of one."""
        micros = self.position.micros
        text = _ESCAPED.sub(lambda code: bytes([int(code[1], 16)]), self.text)
        return b"[%5d.%06d] %s\n" % (micros // 1_000_000, micros % 1_000_000, b" ".join(text.splitlines()))


class KernelLog(Protocol):
    """`read`: what has come since, never waiting. `lost`: records that the kernel threw away unread. `wait_fd`: becomes
    readable with the next record; None: ask again after `FILE_PAUSE_S`. Raises OSError."""

    lost: int

    def read(self) -> list[Record]: ...

    @property
    def wait_fd(self) -> int | None: ...

    @property
    def more(self) -> bool: ...

    def close(self) -> None: ...


def open_log(path: Path, after: Position, history_s: float) -> KernelLog:
    """`after`: where the sensor stood in this boot; without it the last `history_s` seconds. Raises OSError."""
    since = -1 if after.number >= 0 else _uptime_micros() - int(history_s * 1e6)
    if path.is_char_device():
        return Device(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), after, since)
    return File(path, after, since)


def _uptime_micros() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def parse(data: bytes) -> Record | None:
    """None: no record of the kernel's own. Lines behind the first are the record's dictionary."""
    match = _RECORD.match(data)
    if match is None or int(match[1]) >> 3:
        return None
    return Record(Position(int(match[2]), int(match[3])), match[4])


class Device:
    """`/dev/kmsg`: each read gives one record."""

    def __init__(self, fd: int, after: Position, since_micros: int) -> None:
        self.lost = 0
        self.more = False
        self._fd = fd
        self._since = since_micros
        self._last = after.number

    @property
    def wait_fd(self) -> int | None:
        return self._fd

    def read(self) -> list[Record]:
        records: list[Record] = []
        for _ in range(TURN_RECORDS):
            try:
                data = os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                data = b""
            except BrokenPipeError:  # records were overwritten before we read them; the next read goes on behind them
                continue
            if not data:
                self.more = False
                return records
            record = self._new(data)
            if record is not None:
                records.append(record)
        self.more = True
        return records

    def close(self) -> None:
        os.close(self._fd)

    def _new(self, data: bytes) -> Record | None:
        match = _RECORD.match(data)
        if match is None or int(match[2]) <= self._last:
            return None
        number = int(match[2])
        self.lost += max(0, number - self._last - 1) if self._last >= 0 else 0
        self._last = number
        record = parse(data)
        return record if record is not None and record.position.micros >= self._since else None


class File:
    """A file that grows by records, and may be cut short or replaced. A record is new if its number or its time is
    behind the last one's: numbers begin again with a new log."""

    wait_fd: int | None = None

    def __init__(self, path: Path, after: Position, since_micros: int) -> None:
        self.lost = 0
        self.more = False
        self._path = path
        self._since = since_micros
        self._last = after
        self._fd: int | None = None
        self._offset = 0
        self._tail = b""

    def read(self) -> list[Record]:
        records: list[Record] = []
        if self._replaced():
            records += self._rest()
            self.close()
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._offset, self._tail = 0, b""
        return records + self._rest()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _replaced(self) -> bool:
        if self._fd is None:
            return False
        mine, now = os.fstat(self._fd), self._path.stat()
        return (mine.st_dev, mine.st_ino) != (now.st_dev, now.st_ino) or now.st_size < self._offset

    def _rest(self) -> list[Record]:
        assert self._fd is not None  # opened before
        data = os.pread(self._fd, FILE_BYTES, self._offset)
        self._offset += len(data)
        self.more = len(data) == FILE_BYTES
        *lines, tail = (self._tail + data).split(b"\n")
        self._tail = tail[-RECORD_BYTES:]
        return [record for line in lines if (record := self._new(line)) is not None]

    def _new(self, line: bytes) -> Record | None:
        record = parse(line)
        if record is None or record.position.micros < self._since:
            return None
        here = record.position
        if here.number <= self._last.number and here.micros <= self._last.micros:
            return None
        self._last = here
        return record
