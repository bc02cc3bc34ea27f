"""A checkpoint of ours as its JSON files tell it: manifest, rank files, and every tensor with its place on disk."""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_hooks.cli.checkpoints_index import Chunk, read_index
from worker_hooks.cli.checkpoints_pieces import Pace, digest_of, pieces
from worker_hooks.digests import algorithm_of, new_hasher
from worker_hooks.protocol import generations
from worker_hooks.protocol.folder_state import look, said
from worker_hooks.protocol.leases import reading
from worker_hooks.protocol.manifest import MANIFEST, Manifest, RankFile, decode_manifest, parse_folder
from worker_hooks.protocol.messages import MessageError
from worker_hooks.protocol.regular import read_small


class UnreadableCheckpoint(Exception):
    """It cannot be taken as a checkpoint of ours; the text names the file."""


@dataclass(frozen=True)
class Tensor:
    """All its parts, in the order of their places."""

    dtype: str
    size: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def in_order(self) -> bool:
        """Its chunks, one after the other, are its bytes: it was cut along the first dimension only, if at all."""
        place = 0
        for chunk in self.chunks:
            if any(chunk.offsets[1:]) or chunk.sizes[1:] != self.size[1:] or (self.size and chunk.offsets[0] != place):
                return False
            place += chunk.sizes[0] if self.size else 0
        return len(self.chunks) == 1 if not self.size else place == self.size[0]


@dataclass(frozen=True)
class Stored:
    folder: Path
    manifest: Manifest | None
    ranks: tuple[RankFile, ...]
    tensors: dict[str, Tensor]

    @property
    def run(self) -> dict[str, Any]:
        """What is common to all ranks."""
        return self.ranks[0].run


def lease(folder: Path) -> AbstractContextManager[None]:
    """Keeps retention away from a folder in its run; a copy elsewhere needs none."""
    return reading(folder) if (folder.parent / generations.GENERATIONS).is_dir() else nullcontext()


def read_manifest(folder: Path) -> Manifest:
    """As it stands there: a copy outside its run's folder is read too. Raises OSError, MessageError."""
    try:
        return decode_manifest(json.loads(read_small(folder / MANIFEST)))
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, MessageError) else MessageError(MANIFEST, f"not JSON: {error}") from None


def read_stored(folder: Path) -> Stored:
    """Raises UnreadableCheckpoint. A checkpoint that was never committed is read too, if it is complete."""
    folder = folder.absolute()
    place = parse_folder(folder.name)
    if place is None or not folder.is_dir():
        raise UnreadableCheckpoint(f"{folder}: no checkpoint folder (step-00000100.g1)")
    try:
        manifest = read_manifest(folder) if (folder / MANIFEST).exists() else None
        world_size = manifest.world_size if manifest else look(folder, place, None, False).world_size
        if not world_size:
            raise UnreadableCheckpoint(f"{folder}: no rank file")
        ranks = tuple(generations.read_rank_file(folder, rank) for rank in range(world_size))
        return Stored(folder, manifest, ranks, _tensors(folder, world_size))
    except (OSError, MessageError) as error:
        raise UnreadableCheckpoint(f"{folder}: {said(error)}") from None


def _tensors(folder: Path, world_size: int) -> dict[str, Tensor]:
    """A chunk that several ranks stored is the first one's, as a load takes it."""
    chunks: dict[str, dict[tuple[int, ...], Chunk]] = defaultdict(dict)
    for rank in range(world_size):
        for chunk in read_index(folder, rank):
            chunks[chunk.key].setdefault(chunk.offsets, chunk)
    return {key: _tensor(list(found.values())) for key, found in chunks.items()}


def _tensor(chunks: list[Chunk]) -> Tensor:
    first = chunks[0]
    return Tensor(first.dtype, first.size, tuple(sorted(chunks, key=lambda chunk: chunk.offsets)))


# --- comparing ----------------------------------------------------------------------------------------------------


def equal(a: Stored, b: Stored, key: str, pace: Pace) -> bool | None:
    """Whether a tensor of one type and size is the same to the bit; None where its parts do not correspond.

    By the chunks' digests where both have them, otherwise by digests computed here.
    """
    one, other = a.tensors[key], b.tensors[key]
    if alike(one, other):
        return all(_equal(a, x, b, y, pace) for x, y in zip(one.chunks, other.chunks, strict=True))
    if one.in_order and other.in_order:
        return _whole(a, one, pace) == _whole(b, other, pace)
    return None


def alike(one: Tensor, other: Tensor) -> bool:
    """Cut the same way."""
    return [(c.offsets, c.sizes) for c in one.chunks] == [(c.offsets, c.sizes) for c in other.chunks]


def stream(stored: Stored, chunks: tuple[Chunk, ...], pace: Pace) -> Iterator[memoryview]:
    """The bytes of those chunks, one after the other."""
    for chunk in chunks:
        yield from pieces(stored.folder / chunk.file, pace, chunk.start, chunk.bytes)


def _equal(a: Stored, x: Chunk, b: Stored, y: Chunk, pace: Pace) -> bool:
    if x.digest and y.digest and algorithm_of(x.digest) == algorithm_of(y.digest):
        return x.digest == y.digest
    algorithm = algorithm_of(x.digest or y.digest or "sha256")
    return _digest(a, x, algorithm, pace) == _digest(b, y, algorithm, pace)


def _digest(stored: Stored, chunk: Chunk, algorithm: str, pace: Pace) -> str:
    if chunk.digest and algorithm_of(chunk.digest) == algorithm:
        return chunk.digest
    return digest_of(stored.folder / chunk.file, algorithm, pace, chunk.start, chunk.bytes)


def _whole(stored: Stored, tensor: Tensor, pace: Pace) -> str:
    hasher = new_hasher("sha256")
    for piece in stream(stored, tensor.chunks, pace):
        hasher.update(piece)
    return hasher.hexdigest()
