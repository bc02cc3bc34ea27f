"""Reading whole files fast: pieces by several threads, which release the GIL, while another one digests or copies.

Nothing is mapped: a mapping answers broken storage with SIGBUS, a read with an error that says what is wrong.

Measured (2 cores, 1 GiB, ext4): one thread reads a file that the page cache holds in 0.06 s, two in 0.035 s; a cold one
takes what the disk takes, 0.3 s, with any number of threads; XXH3 takes 0.03 s on top, or nothing while a disk is read.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

PIECE = 2 << 20
_BATCH = 8 << 20
_READERS = 2
_AHEAD = 4
Place = tuple[Path, int, memoryview]


def pieces(path: Path) -> Iterator[memoryview]:
    """The file from beginning to end. Each piece is good until the next one is asked for. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        if size <= PIECE:
            yield memoryview(file.read())
            return
        buffers = [memoryview(bytearray(PIECE)) for _ in range(_AHEAD)]
        reads: deque[tuple[memoryview, Future[None]]] = deque()
        with ThreadPoolExecutor(_READERS) as pool:
            for number, start in enumerate(range(0, size, PIECE)):
                if len(reads) == _AHEAD - 1:
                    yield _arrived(reads)
                view = buffers[number % _AHEAD][: min(PIECE, size - start)]
                reads.append((view, pool.submit(read_into, descriptor, view, start, path)))
            while reads:
                yield _arrived(reads)


def _arrived(reads: "deque[tuple[memoryview, Future[None]]]") -> memoryview:
    view, read = reads.popleft()
    read.result()
    return view


def read_into(descriptor: int, view: memoryview, start: int, path: Path) -> None:
    """Fill `view` with the file's bytes from `start`. Raises EOFError where the file ends before."""
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], start + done)
        if count == 0:
            raise EOFError(f"{path} ends at {start + done}, {start + len(view)} bytes were expected")
        done += count


def fill(places: Iterable[Place]) -> None:
    """Fill each view from its file and offset. Raises OSError, EOFError."""
    descriptors: dict[Path, int] = {}
    try:
        with ThreadPoolExecutor(_READERS) as pool:
            reads = []
            for batch in _batches(places):
                for path, _, _ in batch:
                    if path not in descriptors:
                        descriptors[path] = os.open(path, os.O_RDONLY)
                reads.append(pool.submit(_fill_batch, descriptors, batch))
            for read in reads:
                read.result()
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def _fill_batch(descriptors: dict[Path, int], batch: list[Place]) -> None:
    for path, start, view in batch:
        read_into(descriptors[path], view, start, path)


def _batches(places: Iterable[Place]) -> Iterator[list[Place]]:
    """As many small views at a time, or so much of a large one, as are worth the way to another thread."""
    batch: list[Place] = []
    size = 0
    for path, start, view in places:
        for begin in range(0, len(view), _BATCH):
            part = view[begin : begin + _BATCH]
            batch.append((path, start + begin, part))
            size += len(part)
            if size >= _BATCH // 2:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch
