"""Passes the ranks' output through to the job's log, keeps the last of each for `rank_log`, and gives copies away.

One thread reads every pipe. It never parses and never stops reading: a rank must not block on a full pipe because the
job's log cannot be written.
"""

import os
import selectors
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from worker_hooks.agent.ranks import RankProcess

TAIL_BYTES = 8192
MOMENT_S = 0.1
MOST_BYTES = 65536


class Tail:
    """The last `limit` bytes of what one rank wrote, both streams in order of arrival."""

    def __init__(self, limit: int = TAIL_BYTES) -> None:
        self._limit = limit
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > self._limit:
            del self._data[: len(self._data) - self._limit]

    def text(self) -> str:
        """Whole lines where possible, as UTF-8, bytes that are none (and NUL, which databases refuse) replaced."""
        text = bytes(self._data).decode("utf-8", "replace").replace("\0", "\ufffd")
        if len(self._data) == self._limit and "\n" in text:
            text = text.split("\n", 1)[1]
        return text


@dataclass
class _Stream:
    """One pipe of one rank. `rest` is a line that has not ended yet."""

    rank: int
    target: int
    rest: bytes = b""


class OutputPump:
    """Started once, after the ranks. `join` waits for the pipes' ends, bounded: a grandchild may hold them open.

    Lines of several ranks are not mixed: an unfinished one waits for its end, but no longer than a moment (prompts and
    progress bars have none). `copy` gets rank, target (1 or 2) and bytes as they are read; it must not wait.
    """

    def __init__(self, ranks: Iterable[RankProcess], copy: Callable[[int, int, bytes], None]) -> None:
        self._copy = copy
        self.tails = {rank.rank: Tail() for rank in ranks}
        self._selector = selectors.DefaultSelector()
        for rank in ranks:
            if rank.process is None:
                continue
            for pipe, target in ((rank.process.stdout, 1), (rank.process.stderr, 2)):
                assert pipe is not None  # both are piped
                self._selector.register(pipe, selectors.EVENT_READ, _Stream(rank.rank, target))
        self._thread = threading.Thread(target=self._run, name="relume-output", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while streams := [key.data for key in self._selector.get_map().values()]:
            unfinished = any(stream.rest for stream in streams)
            ready = self._selector.select(MOMENT_S if unfinished else None)
            for key, _ in ready:
                self._read(key)
            if not ready:
                for stream in streams:
                    self._pass_on(stream, whole=True)
        self._selector.close()

    def _read(self, key: selectors.SelectorKey) -> None:
        stream: _Stream = key.data
        data = os.read(key.fd, 65536)
        self.tails[stream.rank].add(data)
        self._copy(stream.rank, stream.target, data)
        stream.rest += data
        self._pass_on(stream, whole=not data or len(stream.rest) > MOST_BYTES)
        if not data:
            self._selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]

    @staticmethod
    def _pass_on(stream: _Stream, whole: bool) -> None:
        end = len(stream.rest) if whole else stream.rest.rfind(b"\n") + 1
        if end:
            _write_all(stream.target, stream.rest[:end])
            stream.rest = stream.rest[end:]


def _write_all(target: int, data: bytes) -> None:
    """Write to the job's log; what it refuses (disk full, closed) is lost there, training goes on."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(target, view) :]
        except OSError:
            return
