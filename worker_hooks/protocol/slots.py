"""The shared-memory slot file of docs/formats.md section 4: ranks write their progress, the agent of the node reads it.

64 bytes per local rank, little-endian, each field naturally aligned. Fields are stored one by one through a cast
memoryview, so each store is a single aligned write and a reader never sees half a number; two fields may come from two
moments, which readers must bear. A heartbeat thread would stop while a rank holds the GIL; this memory stays readable.
"""

import mmap
import os
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from worker_hooks.protocol.messages import PHASES

SLOT_BYTES = 64
MAGIC = 0x524C4D31
LAYOUT = struct.Struct("<IIIIqqqq16x")
FILE_NAME = "slots"

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("worker_hooks.protocol.slots: big-endian machines are not supported")


@dataclass(frozen=True)
class Slot:
    """One rank's progress. Times are CLOCK_MONOTONIC nanoseconds of this node; `step` is the last completed update."""

    pid: int
    phase: str
    flags: int
    step: int
    progress_ns: int
    beat_ns: int
    start_step: int

    def progress_age_s(self, now_ns: int) -> float:
        return max(0.0, (now_ns - self.progress_ns) / 1e9)

    def beat_age_s(self, now_ns: int) -> float:
        return max(0.0, (now_ns - self.beat_ns) / 1e9)


def create_slots(path: Path, count: int) -> None:
    """Make the file with `count` empty slots (agent, before it starts the ranks)."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # Written, not truncated to size: a store into a hole of a full file system would be a SIGBUS in the rank.
        os.write(descriptor, bytes(SLOT_BYTES * count))
    finally:
        os.close(descriptor)


def clear_slot(path: Path, index: int) -> None:
    """Empty one slot before a new process takes it over, so that the old one's progress is not taken for its own."""
    with path.open("r+b") as file:
        file.seek(index * SLOT_BYTES)
        file.write(bytes(SLOT_BYTES))


def read_slots(path: Path) -> list[Slot | None]:
    """Every slot of the file; None where no rank has written yet. Raises OSError if the file cannot be read."""
    data = path.read_bytes()
    return [_decode(data, offset) for offset in range(0, len(data) - SLOT_BYTES + 1, SLOT_BYTES)]


def _decode(data: bytes, offset: int) -> Slot | None:
    magic, pid, phase, flags, step, progress, beat, start = LAYOUT.unpack_from(data, offset)
    if magic != MAGIC:
        return None
    name = PHASES[phase] if phase < len(PHASES) else PHASES[0]
    return Slot(pid, name, flags, step, progress, beat, start)


class SlotWriter:
    """A rank's own slot. Every method is a few memory stores: no system call, no lock.

    Raises OSError or ValueError from the constructor only (file missing or too small).
    """

    def __init__(self, path: Path, index: int) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        start = index * SLOT_BYTES
        if index < 0 or start + SLOT_BYTES > len(self._map):
            self._map.close()
            raise ValueError(f"{path} has no slot {index}")
        self._view = memoryview(self._map)[start : start + SLOT_BYTES]
        self._words = self._view[:16].cast("I")
        self._longs = self._view[16:48].cast("q")
        self._words[1], self._words[2], self._words[3] = os.getpid(), 0, 0
        self._longs[0] = self._longs[3] = 0
        now = time.monotonic_ns()
        self._longs[1] = self._longs[2] = now
        self._words[0] = MAGIC  # last: a reader that sees it sees a whole slot

    def beat(self) -> None:
        """The process is alive."""
        self._longs[2] = time.monotonic_ns()

    def phase(self, name: str) -> None:
        """A new phase counts as progress. Raises ValueError for a name outside PHASES."""
        self._words[2] = PHASES.index(name)
        self._longs[1] = self._longs[2] = time.monotonic_ns()

    def step(self, step: int) -> None:
        """Update `step` is complete."""
        self._longs[0] = step
        self._longs[1] = self._longs[2] = time.monotonic_ns()

    def start_step(self, step: int) -> None:
        """This attempt started from `step` (0: fresh)."""
        self._longs[3] = self._longs[0] = step

    def close(self) -> None:
        for view in (self._words, self._longs, self._view):
            view.release()
        self._map.close()

    def __enter__(self) -> "SlotWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
