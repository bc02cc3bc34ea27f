"""One file of a share, read once: what goes where, and which digest covers it.

A rank that answers for the share, or wants at least half of the file, reads all of it and compares the file's digest,
which covers the padding too. Otherwise it reads the chunks that it wants and compares theirs; an index of version 1
has none, and there the rank that answers for the share says whether these bytes were good.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.planner import ReadItem

from worker_hooks.digests import Hasher, algorithm_of
from worker_hooks.protocol.manifest import FileEntry
from worker_hooks.training.files.digests import new_hasher, raw_bytes
from worker_hooks.training.files.reading import Segment
from worker_hooks.training.resuming.share_index import Chunk

_BRIDGE = 64 << 10  # so much that nobody wants is read rather than left out


@dataclass(frozen=True)
class Want:
    """DCP's item: a region of a chunk, and the memory it belongs into."""

    chunk: Chunk
    item: ReadItem
    target: torch.Tensor

    @property
    def rows_only(self) -> bool:
        """True where the region is one stretch of the file: all of the chunk, or some of its rows."""
        return tuple(self.item.lengths[1:]) == self.chunk.sizes[1:]

    @property
    def start(self) -> int:
        """Where the region begins in the file, if it is one stretch."""
        row = math.prod(self.chunk.sizes[1:]) * self.chunk.dtype.itemsize
        return self.chunk.start + (self.item.storage_offsets[0] * row if self.chunk.sizes else 0)

    def part_of(self, stored: torch.Tensor) -> torch.Tensor:
        """The region, out of the whole chunk."""
        for axis, (offset, length) in enumerate(zip(self.item.storage_offsets, self.item.lengths, strict=True)):
            stored = stored.narrow(axis, offset, length)
        return stored


@dataclass(frozen=True)
class _Compared:
    """What a digest was said to be, and the one that grows while the bytes arrive."""

    what: str
    digest: str
    hasher: Hasher

    @property
    def matches(self) -> bool:
        return f"{algorithm_of(self.digest)}:{self.hasher.hexdigest()}" == self.digest


def most_of(entry: FileEntry, chunks: Iterable[Chunk]) -> bool:
    """Whether so much of the file is wanted that all of it is read."""
    return 2 * sum(chunk.bytes for chunk in chunks) >= entry.bytes


class FilePass:
    def __init__(self, entry: FileEntry, wanted: list[Want], *, answers: bool) -> None:
        self.entry = entry
        self._wanted: dict[Chunk, list[Want]] = defaultdict(list)
        for want in sorted(wanted, key=lambda want: want.chunk.start):
            self._wanted[want.chunk].append(want)
        self.whole = answers or most_of(entry, self._wanted)
        self._compared: list[_Compared] = []

    def segments(self) -> Iterator[Segment]:
        """In the order of the file. Memory that a target cannot be filled from directly is made when its turn comes."""
        return self._all() if self.whole else self._some()

    def problems(self) -> list[str]:
        """Once everything is digested."""
        return [f"{one.what} does not match its digest" for one in self._compared if not one.matches]

    def ended(self) -> None:
        """The file could not be read to its end: there is nothing to compare."""
        self._compared.clear()

    def _all(self) -> Iterator[Segment]:
        hasher, at = self._compare(self.entry.name, self.entry.digest), 0
        for chunk, wants in self._wanted.items():
            yield from _gap(at, chunk.start, hasher)
            yield from _chunk(chunk, wants, hasher)
            at = chunk.start + chunk.bytes
        yield from _gap(at, self.entry.bytes, hasher)

    def _some(self) -> Iterator[Segment]:
        at = 0
        for chunk, wants in self._wanted.items():
            if chunk.start - at <= _BRIDGE:
                yield from _gap(at, chunk.start, None)
            what = f"{chunk.key} in {self.entry.name}"
            yield from _chunk(chunk, wants, self._compare(what, chunk.digest) if chunk.digest else None)
            at = chunk.start + chunk.bytes

    def _compare(self, what: str, digest: str) -> Hasher:
        one = _Compared(what, digest, new_hasher(algorithm_of(digest)))
        self._compared.append(one)
        return one.hasher


def _gap(start: int, end: int, hasher: Hasher | None) -> Iterator[Segment]:
    """Padding, and what is not wanted here."""
    if end > start:
        yield Segment(start, end - start, sink=hasher)


def _chunk(chunk: Chunk, wants: list[Want], hasher: Hasher | None) -> Iterator[Segment]:
    """All of its bytes: to the target, or to memory of their own from which the targets are filled."""
    first, end = wants[0], chunk.start + chunk.bytes
    if len(wants) > 1 or not first.rows_only:
        stored = torch.empty(chunk.sizes, dtype=chunk.dtype)
        parts = [(want.target, want.part_of(stored)) for want in wants]
        yield Segment(chunk.start, chunk.bytes, raw_bytes(stored), hasher, _filling(parts))
        return
    size = math.prod(first.item.lengths) * chunk.dtype.itemsize
    yield from _gap(chunk.start, first.start, hasher)
    if _is_plain(first.target, chunk.dtype):
        yield Segment(first.start, size, raw_bytes(first.target), hasher)
    else:
        part = torch.empty(tuple(first.item.lengths), dtype=chunk.dtype)
        yield Segment(first.start, size, raw_bytes(part), hasher, _filling([(first.target, part)]))
    yield from _gap(first.start + size, end, hasher)


def _filling(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], None]:
    """Targets, and what they are filled from, which lives as long as this does."""

    def arrived() -> None:
        for target, part in parts:
            target.copy_(part)

    return arrived


def _is_plain(target: torch.Tensor, dtype: torch.dtype) -> bool:
    """Its memory is the bytes that are stored."""
    flat = target.device.type == "cpu" and target.is_contiguous() and target.dtype == dtype
    return flat and not target.is_conj() and not target.is_neg()
