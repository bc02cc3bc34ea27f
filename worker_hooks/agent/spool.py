"""Durable records on their way to the controller: numbered, kept until acked, written ahead to a file.

File `<node>.g<generation>.jsonl` in the spool folder, JSON lines, append-only between compactions:

    {"spool": 1, "run_id": …, "generation": …, "node": …, "boot_id": …, "job": {…}, "agent": {…}}     first line
    {"seq": 7, "kind": "metrics", …}            a record as it travels
    {"acked": 6}                                 the controller has everything up to 6
    {"tailed": {"events-0.jsonl": 5120}}         how far the ranks' event files have been read

Two locks keep a hanging file system away from everything else: `_memory` is held for microseconds, `_io` while writing.
A record may be sent once it is in the file, or when the file cannot be written: then memory alone has to do, and a
successor that reads the same event files again cannot clash with what was sent.

Bounded: above `limit` bytes of unacked records, metrics are dropped; above 5/4 of it, everything. Sequence numbers are
given only to what is kept, so the numbers have no gap; the count goes out as an event `dropped` when there is room.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from worker_hooks.agent.spool_file import Draft, decode, encode, encode_draft, read_spool, write_all
from worker_hooks.protocol.messages import Record

LIMIT_BYTES = 32 << 20
COMPACT_BYTES = 1 << 20
STUCK_S = 1.0


class Spool:
    """The outgoing records of one (run id, generation, node). Opening an existing file continues it."""

    def __init__(self, path: Path, header: Mapping[str, Any], limit: int = LIMIT_BYTES) -> None:
        self.path = path
        self.dropped = 0
        self.error: str | None = None
        self._header = encode({"spool": 1, **header})
        self._limit = limit
        self._memory = threading.Lock()
        self._io = threading.Lock()
        self._pending: deque[tuple[int, bytes]] = deque()
        self._pending_bytes = 0
        self._dead_bytes = 0
        self._unwritten: list[bytes] = []
        self._last_seq = self._acked = self._written_seq = 0
        self._unsaid: dict[str, Any] = {}
        self._descriptor: int | None = None
        self._flushing_since: float | None = None
        self.tailed: dict[str, int] = {}
        self._load()

    # --- records in, records out: memory only --------------------------------------------------------------------

    @property
    def unacked(self) -> int:
        return len(self._pending)

    @property
    def acked(self) -> int:
        return self._acked

    @property
    def last_seq(self) -> int:
        """The highest number given to a record."""
        return self._last_seq

    def append(self, drafts: Iterable[Draft], tailed: Mapping[str, int] | None = None) -> None:
        """Number and keep the drafts. Touches no file: `flush` writes."""
        with self._memory:
            for draft in drafts:
                self._append(draft)
            if tailed and dict(tailed) != self.tailed:
                self.tailed = dict(tailed)
                self._unwritten.append(encode({"tailed": self.tailed}))
                self._dead_bytes += len(self._unwritten[-1])  # the line before says nothing any more

    def batch(self, max_bytes: int, max_count: int) -> list[Record]:
        """The oldest unacked records that may be sent now."""
        records: list[Record] = []
        total = 0
        with self._memory:
            limit = self._last_seq if self._memory_alone() else self._written_seq
            for seq, line in self._pending:
                total += len(line)
                if seq > limit or len(records) >= max_count or (records and total > max_bytes):
                    break
                records.append(decode(line))
        return records

    def ack(self, seq: int) -> None:
        """The controller has committed everything up to `seq`; numbers never given out are ignored."""
        with self._memory:
            seq = min(seq, self._last_seq)
            if seq <= self._acked:
                return
            self._acked = seq
            while self._pending and self._pending[0][0] <= seq:
                gone = len(self._pending.popleft()[1])
                self._pending_bytes -= gone
                self._dead_bytes += gone
            self._unwritten.append(encode({"acked": seq}))

    def replace(self, seq: int, draft: Draft) -> Record | None:
        """Put another record under a number that the controller refuses; returns the one that was there."""
        with self._memory:
            for index, (number, line) in enumerate(self._pending):
                if number == seq:
                    encoded = encode_draft(seq, draft)
                    self._pending[index] = (seq, encoded)
                    self._pending_bytes += len(encoded) - len(line)
                    self._unwritten.append(encoded)
                    return decode(line)
        return None

    # --- the file ------------------------------------------------------------------------------------------------

    def flush(self, sync: bool = False) -> bool:
        """Write what is not in the file yet; False (and `error` says why) if that failed. Blocks as the disk does."""
        with self._io:
            self._flushing_since = time.monotonic()
            try:
                self._write()
                if sync and self._descriptor is not None:
                    os.fsync(self._descriptor)
                self.error = None
            except OSError as error:
                self.error = f"{self.path}: {error.strerror}"
            finally:
                self._flushing_since = None
            return self.error is None

    def close(self) -> bool:
        """The last words: the count of what was dropped, everything on disk; a file with nothing to send is removed."""
        with self._memory:
            self._say_dropped(force=True)
        done = self.flush(sync=True)
        with self._io:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
            if done and not self._pending:
                self.path.unlink(missing_ok=True)
        return done

    def _append(self, draft: Draft) -> None:
        limit = self._limit if draft.kind == "metrics" else self._limit * 5 // 4
        if self._pending_bytes >= limit:
            self._drop(draft)
            return
        self._say_dropped()
        self._number(draft)

    def _number(self, draft: Draft) -> None:
        self._last_seq += 1
        line = encode_draft(self._last_seq, draft)
        self._pending.append((self._last_seq, line))
        self._pending_bytes += len(line)
        self._unwritten.append(line)

    def _drop(self, draft: Draft) -> None:
        self.dropped += 1
        unsaid = self._unsaid or {"records": 0, "points": 0, "since": draft.at}
        unsaid["records"] += 1
        unsaid["points"] += len(draft.body.get("values", ())) if draft.kind == "metrics" else 0
        unsaid["until"] = draft.at
        self._unsaid = unsaid

    def _say_dropped(self, force: bool = False) -> None:
        if self._unsaid and (force or self._pending_bytes < self._limit):
            said, self._unsaid = self._unsaid, {}
            self._number(Draft("event", said["until"], {"name": "dropped", "rank": None, "data": said}))

    def _memory_alone(self) -> bool:
        since = self._flushing_since
        return self.error is not None or (since is not None and time.monotonic() - since > STUCK_S)

    def _load(self) -> None:
        try:
            content = read_spool(self.path)
        except OSError:
            self._unwritten.append(self._header)
            return
        if content.header is None:
            self._unwritten.append(self._header)
        self._last_seq = self._written_seq = content.last_seq
        self._acked = content.acked
        self._pending = deque(content.lines)
        self._pending_bytes = sum(len(line) for _, line in content.lines)
        self.tailed = content.tailed

    def _write(self) -> None:
        self._open()
        assert self._descriptor is not None  # _open raises otherwise
        if self._dead_bytes > max(COMPACT_BYTES, self._pending_bytes):
            self._compact()
        with self._memory:
            lines, self._unwritten = self._unwritten, []
            last_seq = self._last_seq
        if not lines:
            return
        try:
            write_all(self._descriptor, b"\n".join(lines) + b"\n")
        except OSError:
            self._forget_file()
            raise
        self._written_seq = last_seq

    def _forget_file(self) -> None:
        """After a failed write: open anew next time and write all that is not surely there (twice does no harm)."""
        assert self._descriptor is not None  # opened before
        os.close(self._descriptor)
        self._descriptor = None
        with self._memory:
            self._unwritten = [self._header, *self._state(), *self._lines_after(self._written_seq)]

    def _state(self) -> list[bytes]:
        return [encode({"acked": self._acked}), encode({"tailed": self.tailed})]

    def _lines_after(self, seq: int) -> list[bytes]:
        return [line for number, line in self._pending if number > seq]

    def _open(self) -> None:
        if self._descriptor is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            try:
                write_all(self._descriptor, b"\n")  # somebody was stopped in the middle of a line
            except OSError:
                self._forget_file()
                raise

    def _compact(self) -> None:
        """Write the file anew without what is acked: aside, fsync, rename."""
        with self._memory:
            lines = [self._header, *self._state(), *self._lines_after(0)]
            last_seq, self._unwritten, unwritten = self._last_seq, [], self._unwritten
        aside = self.path.with_suffix(".new")
        descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            write_all(descriptor, b"\n".join(lines) + b"\n")
            os.fsync(descriptor)
            aside.rename(self.path)
        except OSError:
            os.close(descriptor)
            with self._memory:
                self._unwritten = unwritten + self._unwritten
            raise
        assert self._descriptor is not None  # opened before
        os.close(self._descriptor)
        self._descriptor, self._dead_bytes, self._written_seq = descriptor, 0, last_seq
