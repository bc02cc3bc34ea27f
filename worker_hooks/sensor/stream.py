"""The sensor's spool: one file that outlives restarts, with the stream that its numbers belong to.

The place in the kernel's log is kept with the records, in one write: a line whose sign is in the file is never read
again, and one whose sign is not is. Where the disk was full when the sensor died, the controller knows numbers that the
file does not: its first answer shows it, and what is waiting goes out under a new stream.
"""

import secrets
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from worker_hooks.agent.spool import Spool
from worker_hooks.agent.spool_file import Draft, read_spool
from worker_hooks.sensor.kernel_log import Position
from worker_hooks.signs.sign import Sign

LIMIT_BYTES = 8 << 20
FILE = "stream.jsonl"
KEPT_RECORDS = 1 << 16


def draft(sign: Sign, node: str) -> Draft:
    """As it travels; a sign without a time is dated with now."""
    body: dict[str, Any] = {
        "code": sign.code,
        "raw": sign.raw,
        "layer": sign.layer,
        "source": sign.source,
        "node": sign.node or node,
        "rank": sign.rank,
        "attrs": dict(sign.attrs),
    }
    if sign.count > 1:
        body |= {"count": sign.count, "last_at": sign.last_at}
    return Draft("sign", time.time() if sign.at is None else sign.at, body)


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
        old = self.spool
        old.flush()  # only what is in the file, or cannot be, is given out
        with self._lock:
            waiting = old.batch(LIMIT_BYTES * 2, KEPT_RECORDS)
            self._begin()
            self.spool = self._open()
            self.spool.append((Draft(record.kind, record.at, record.body) for record in waiting), old.tailed)

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
