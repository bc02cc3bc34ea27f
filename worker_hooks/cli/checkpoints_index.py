"""The index of a rank's share (docs/formats.md section 6, versions 1 and 2), read without torch."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_hooks.protocol.manifest import DIGESTS, rank_folder_name
from worker_hooks.protocol.messages import MessageError, Reader
from worker_hooks.protocol.regular import read_small

INDEX = "index.json"
_DATA = "tensors.bin"
_VERSIONS = (1, 2)


@dataclass(frozen=True)
class Chunk:
    """A part of a tensor in a file; `file` is relative to the checkpoint's folder. `digest` None: version 1."""

    key: str
    dtype: str
    size: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    bytes: int
    digest: str | None

    @property
    def place(self) -> tuple[str, tuple[int, ...]]:
        return self.key, self.offsets


def read_index(folder: Path, rank: int) -> list[Chunk]:
    """Raises OSError, and MessageError for what is no index that is known here."""
    path = folder / rank_folder_name(rank) / INDEX
    where = f"{rank_folder_name(rank)}/{INDEX}"
    try:
        data = json.loads(read_small(path))
    except (ValueError, RecursionError) as error:
        raise MessageError(where, f"not JSON: {error}") from None
    source = Reader.of(data, where)
    version = source.integer("version", least=1)
    if version not in _VERSIONS:
        raise MessageError(where, f"version {version} is newer than this reader knows ({_VERSIONS[-1]})")
    tensors = source.reader("tensors").data
    try:
        return list(_chunks(source, tensors, rank, version))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, MessageError):
            raise
        raise MessageError(where, f"broken: {type(error).__name__} {error}") from None


def _chunks(source: Reader, tensors: Mapping[str, Any], rank: int, version: int) -> Iterator[Chunk]:
    for item in source.readers("chunks"):
        key = item.text("key")
        name = item.text("file") if version > 1 else _DATA
        if "/" in name or name in ("", ".", ".."):
            raise MessageError(item.path("file"), f"{name[:80]!r} is not a name of a file beside the index")
        yield Chunk(
            key,
            str(tensors[key]["dtype"]),
            tuple(int(length) for length in tensors[key]["size"]),
            tuple(int(offset) for offset in item.data["offsets"]),
            tuple(int(length) for length in item.data["sizes"]),
            f"{rank_folder_name(rank)}/{name}",
            item.integer("start", least=0),
            item.integer("bytes", least=0),
            _digest(item) if version > 1 else None,
        )


def _digest(item: Reader) -> str:
    digest = item.text("digest", 128)
    if digest.partition(":")[0] not in DIGESTS:
        raise MessageError(item.path("digest"), f"{digest[:80]!r} is of no algorithm that is known here")
    return digest
