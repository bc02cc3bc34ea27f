"""Reading a committed checkpoint back from storage, while nothing else is to be done: *committed* becomes *verified*.

Each rank reads its successor's share, so that in a job of several nodes most bytes come through another node than the
one that wrote them. Past the page cache where that works, otherwise after asking the kernel to forget the file. It
takes at most a fifth of the time: after each piece it rests four times as long as the piece took.
"""

import mmap
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from worker_hooks.digests import algorithm_of
from worker_hooks.protocol import generations
from worker_hooks.protocol.durable import encode_json, replace_file
from worker_hooks.protocol.manifest import MANIFEST, QUARANTINE, FileEntry, RankRef
from worker_hooks.protocol.messages import MessageError
from worker_hooks.training.files.digests import new_hasher
from worker_hooks.training.identity import Identity

PIECE = 4 << 20
REST = 4.0
_FOLDERS = 2
_LOOK_S = 0.25
_NEXT_S = 0.01


def report_name(rank: int) -> str:
    """What was found of that rank's share."""
    return f"rank-{rank:05d}.verified.json"


class ReadBack:
    """One share of one folder, read piece by piece. `problem` and `bytes` are final when `step` has said 0."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.rank = rank
        self.bytes = 0
        self.problem: str | None = None
        self._pieces = self._read()

    def step(self) -> float:
        """Read a little; how long to rest after it, 0 when everything is read. Raises OSError for an outage."""
        begun = time.monotonic()
        try:
            next(self._pieces)
        except StopIteration:
            return 0.0
        except (FileNotFoundError, MessageError) as error:
            self.problem = f"{getattr(error, 'filename', None) or error}: gone or broken when read back"
            return 0.0
        return REST * (time.monotonic() - begun) + 0.001

    def _read(self) -> Iterator[None]:
        ref = generations.read_manifest(self.folder).ranks[self.rank]
        yield from self._compare(FileEntry(ref.file, _size(self.folder, ref), ref.digest))
        for entry in generations.read_rank_file(self.folder, self.rank).files:
            if self.problem is None:
                yield from self._compare(entry)

    def _compare(self, entry: FileEntry) -> Iterator[None]:
        hasher, count = new_hasher(algorithm_of(entry.digest)), 0
        for piece in pieces(self.folder / entry.name):
            hasher.update(piece)
            count += len(piece)
            yield
        self.bytes += count
        found = f"{algorithm_of(entry.digest)}:{hasher.hexdigest()}"
        if (count, found) != (entry.bytes, entry.digest):
            self.problem = f"{entry.name} read back from storage does not match its digest"


class ReadingBack:
    """What a rank still has to read, the newest first."""

    def __init__(self, identity: Identity) -> None:
        self._me = identity
        self._waiting: deque[Path] = deque(maxlen=_FOLDERS)
        self._reading: ReadBack | None = None

    def add(self, folder: Path) -> None:
        self._waiting.append(folder)

    def step(self, otherwise: float) -> float:
        """Read a little; how long to rest after it, `otherwise` where there is nothing to wait for.

        Raises OSError for an outage: that share is given up, and never said to be verified.
        """
        if self._reading is None:
            self._reading = self._next()
        if self._reading is None:
            return _LOOK_S if self._waiting else otherwise
        read, self._reading = self._reading, None
        rest = read.step()
        if rest > 0.0:
            self._reading = read
            return rest
        with suppress(FileNotFoundError):  # retention took it meanwhile, and nobody is to be told of that
            write_report(read, by=self._me.rank, now=time.time())
        return _NEXT_S

    def _next(self) -> ReadBack | None:
        """The newest that is committed. An older one that was overtaken is not worth reading any more."""
        for folder in reversed(self._waiting):
            if (folder / MANIFEST).exists() and not (folder / QUARANTINE).exists():
                while self._waiting and self._waiting[0] != folder:
                    self._waiting.popleft()
                self._waiting.popleft()
                return ReadBack(folder, (self._me.rank + 1) % self._me.world_size)
        return None


def _size(folder: Path, ref: RankRef) -> int:
    return (folder / ref.file).stat().st_size


def pieces(path: Path) -> Iterator[memoryview]:
    """A file from storage, not from memory. Each piece is good until the next one is asked for."""
    descriptor, direct = _open(path)
    try:
        buffer, at = memoryview(mmap.mmap(-1, PIECE)), 0  # on a page, as O_DIRECT asks for
        while count := os.preadv(descriptor, [buffer], at):
            yield buffer[:count]
            at += count
            if not direct:
                os.posix_fadvise(descriptor, 0, at, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _open(path: Path) -> tuple[int, bool]:
    with suppress(OSError, AttributeError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, PIECE) as memory:
                os.preadv(descriptor, [memory], 0)
            return descriptor, True
        except OSError:
            os.close(descriptor)
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return descriptor, False


def write_report(read: ReadBack, *, by: int, now: float) -> None:
    """Durable, beside the rank file, with the manifest that it speaks of."""
    report = {
        "version": 1,
        "rank": read.rank,
        "by": by,
        "at": now,
        "bytes": read.bytes,
        "problem": read.problem,
        "manifest": manifest_digest(read.folder),
    }
    replace_file(read.folder / report_name(read.rank), encode_json(report))


def manifest_digest(folder: Path) -> str:
    return "sha256:" + sha256((folder / MANIFEST).read_bytes()).hexdigest()


def verified_note(reports: list[dict[str, Any]], folder: Path, *, now: float) -> dict[str, Any]:
    """What `verified.json` says: every byte of every rank was read back and matched."""
    total = sum(int(report["bytes"]) for report in reports)
    return {"version": 1, "at": now, "ranks": len(reports), "bytes": total, "manifest": manifest_digest(folder)}
