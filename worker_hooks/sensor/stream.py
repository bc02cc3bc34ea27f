"""The sensor's spool: one file that outlives restarts, with the stream that its numbers belong to.

The place in the kernel's log is kept with the records, in one write: a line whose sign is in the file is never read
again, and one whose sign is not is. Where the disk was full when the sensor died, the controller knows numbers that the
file does not: its first answer shows it, and what is waiting goes out under a new stream.
"""

import secrets
import threading
from collections.abc import Iterable
from pathlib import Path

from worker_hooks.agent.spool import Spool
from worker_hooks.agent.spool_file import Draft, read_spool
from worker_hooks.sensor.kernel_log import Position

LIMIT_BYTES = 8 << 20
FILE = "stream.jsonl"


class Stream:
    """`loaded`: the highest number that an earlier process has left in the file."""

    def __init__(self, folder: Path, node: str) -> None:
        self._lock = threading.Lock()
        self._path = folder / FILE
        self._node = node
        self.name = _stream_of(self._path)
        if not self.name:
            self._begin()
        self.spool = self._open()
        self.loaded = self.spool.last_seq

    def position(self, boot_id: str) -> Position:
        tailed = self.spool.tailed
        return Position(tailed.get(f"{boot_id} number", -1), tailed.get(f"{boot_id} micros", -1))

    def add(self, drafts: Iterable[Draft], boot_id: str, position: Position) -> None:
        known = position.number >= 0
        here = {f"{boot_id} number": position.number, f"{boot_id} micros": position.micros} if known else None
        with self._lock:
            self.spool.append(drafts, here)

    def renew(self) -> None:
        """Everything that waits, under a new stream: the controller has other records under these numbers."""
        while not self._moved():
            pass  # a sign came in between
        self.spool.flush()

    def _moved(self) -> bool:
        old = self.spool
        old.flush()  # only what is in the file, or cannot be, is given out
        with self._lock:
            waiting = old.batch(LIMIT_BYTES * 2, old.unacked)
            if len(waiting) < old.unacked:
                return False
            self._begin()
            self.spool = self._open()
            self.spool.append((Draft(record.kind, record.at, record.body) for record in waiting), old.tailed)
            return True

    def _begin(self) -> None:
        """Whatever lies there cannot be continued."""
        self.name = secrets.token_hex(16)
        if self._path.exists():
            self._path.replace(self._path.with_suffix(".aside"))

    def _open(self) -> Spool:
        return Spool(self._path, {"stream": self.name, "node": self._node}, LIMIT_BYTES)


def _stream_of(path: Path) -> str:
    try:
        header = read_spool(path).header or {}
    except OSError:
        return ""
    stream = header.get("stream")
    return stream if isinstance(stream, str) else ""
