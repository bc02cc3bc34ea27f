"""The index beside a rank's tensors: which part of which tensor lies where, and its digest (docs/formats.md section 6).

Version 1 knows one file and no digests; version 2 names both for each chunk. An index is only believed after its own
digest matched, and even then it may name nothing but files of its rank whose digests are known.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from worker_hooks.training.files.share_files import DATA

Place = tuple[str, tuple[int, ...]]
VERSIONS = (1, 2)


@dataclass(frozen=True)
class Chunk:
    """`whole`: the size of the tensor it is a part of. `digest` is None in version 1."""

    key: str
    rank: int
    file: str
    start: int
    bytes: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    whole: tuple[int, ...]
    dtype: torch.dtype
    digest: str | None

    @property
    def place(self) -> Place:
        return self.key, self.offsets


def chunks_of(index: Mapping[str, Any], rank: int) -> list[Chunk]:
    """Raises ValueError, KeyError or TypeError for an index that no writer of ours made."""
    if index["version"] not in VERSIONS:
        raise ValueError(f"version {index['version']} of a tensor index is newer than this reader knows")
    return [_chunk(item, index["tensors"][item["key"]], rank) for item in index["chunks"]]


def _chunk(item: Mapping[str, Any], tensor: Mapping[str, Any], rank: int) -> Chunk:
    dtype = getattr(torch, tensor["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{item['key']}: {tensor['dtype']!r} is no type of a tensor")
    return Chunk(
        key=item["key"],
        rank=rank,
        file=item.get("file", DATA),
        start=int(item["start"]),
        bytes=int(item["bytes"]),
        offsets=tuple(item["offsets"]),
        sizes=tuple(item["sizes"]),
        whole=tuple(tensor["size"]),
        dtype=dtype,
        digest=item.get("digest"),
    )


def misplaced(chunks: list[Chunk], sizes: Mapping[str, int]) -> str | None:
    """What is wrong with where the chunks say they lie; `sizes`: the length of each known file. None if all is well."""
    for chunk in chunks:
        if chunk.file not in sizes:
            return f"{chunk.key} lies in {chunk.file!r}, which the rank file does not list"
        if chunk.bytes != math.prod(chunk.sizes) * chunk.dtype.itemsize:
            return f"{chunk.key} has {chunk.bytes} bytes for {list(chunk.sizes)} of {chunk.dtype}"
        if not 0 <= chunk.start <= chunk.start + chunk.bytes <= sizes[chunk.file]:
            return f"{chunk.key} ends beyond {chunk.file}"
    return _overlap(chunks)


def _overlap(chunks: list[Chunk]) -> str | None:
    """No two chunks share bytes: a file is read once, from front to back."""
    filled = sorted((chunk for chunk in chunks if chunk.bytes), key=lambda chunk: (chunk.file, chunk.start))
    for one, other in pairwise(filled):
        if one.file == other.file and one.start + one.bytes > other.start:
            return f"{other.key} begins within {one.key}"
    return None
