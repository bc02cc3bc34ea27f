"""Bytes of checkpoints on disk, read in pieces and no faster than asked, and their digests."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from worker_hooks.digests import new_hasher
from worker_hooks.protocol.regular import open_regular

PIECE = 4 << 20


class Pace:
    """Rests so that no more than `limit` bytes a second are read (None: as fast as it goes), and tells `watch`."""

    def __init__(self, limit: float | None = None, watch: Callable[[int], None] | None = None) -> None:
        self.bytes = 0
        self._limit = limit
        self._watch = watch
        self._begun = time.monotonic()

    def read(self, count: int) -> None:
        self.bytes += count
        if self._watch is not None:
            self._watch(self.bytes)
        if self._limit is not None:
            ahead = self.bytes / self._limit - (time.monotonic() - self._begun)
            if ahead > 0:
                time.sleep(ahead)


def pieces(path: Path, pace: Pace, start: int = 0, length: int | None = None) -> Iterator[memoryview]:
    """A file or a stretch of it, from storage where the kernel lets go of what it remembers. Each piece is good until
    the next one is asked for. Memory: one piece. Raises ValueError where the stretch is not all there."""
    buffer = memoryview(bytearray(PIECE))
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), start, length or 0, os.POSIX_FADV_DONTNEED)
        file.seek(start)
        left = length
        while left is None or left > 0:
            count = file.readinto(buffer if left is None else buffer[: min(left, PIECE)])
            if not count:
                if left:
                    raise ValueError(f"{path.name} ends {left} bytes too early")
                return
            pace.read(count)
            yield buffer[:count]
            left = None if left is None else left - count


def digest_of(path: Path, algorithm: str, pace: Pace, start: int = 0, length: int | None = None) -> str:
    """Of a whole file or a stretch of it. Raises DigestError, OSError, ValueError where not all of it is there."""
    hasher = new_hasher(algorithm)
    for piece in pieces(path, pace, start, length):
        hasher.update(piece)
    return f"{algorithm}:{hasher.hexdigest()}"
