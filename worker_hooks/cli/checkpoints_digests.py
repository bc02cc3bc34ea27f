"""Digests of bytes on disk as the writers of checkpoints make them, `<algorithm>:<hex>`, read in pieces."""

import hashlib
import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

PIECE = 4 << 20


class MissingPackage(Exception):
    """This installation cannot compute the digest; the text names the package."""


class Hasher(Protocol):
    def update(self, data: Any, /) -> None: ...
    def hexdigest(self) -> str: ...


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: Any, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def new_hasher(algorithm: str) -> Hasher:
    """Raises MissingPackage, ValueError for an unknown algorithm."""
    if algorithm == "xxh3_128":
        try:
            import xxhash
        except ImportError:
            raise MissingPackage(
                "these digests are xxh3_128, which needs the package xxhash: pip install xxhash"
            ) from None
        hasher: Hasher = xxhash.xxh3_128()
        return hasher
    if algorithm == "sha256":
        return hashlib.sha256()
    if algorithm == "crc32":
        return _Crc32()
    raise ValueError(f"unknown digest algorithm {algorithm!r}")


def algorithm_of(digest: str) -> str:
    return digest.partition(":")[0]


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
    with path.open("rb", buffering=0) as file:
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
    """Of a whole file or a stretch of it."""
    hasher = new_hasher(algorithm)
    for piece in pieces(path, pace, start, length):
        hasher.update(piece)
    return f"{algorithm}:{hasher.hexdigest()}"
