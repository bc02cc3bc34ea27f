"""All ranks' shares of a checkpoint read as one through torch.distributed.checkpoint. No pickle.

A load merges the indexes of all ranks into one `Metadata`; DCP then reads any region of any tensor, also for another
number of ranks. Whole chunks go straight into the target's memory, by several threads. The files: docs/formats.md
section 6.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from worker_hooks.protocol.manifest import rank_folder_name
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.files import reading
from worker_hooks.training.files.digests import new_hasher, raw_bytes
from worker_hooks.training.files.share_files import INDEX, alone
from worker_hooks.training.resuming.share_index import Chunk, Place, chunks_of


def load_shares(folder: Path, ranks: int, targets: dict[str, torch.Tensor]) -> None:
    """Fill `targets` in place from the shares of all ranks. Verify the files' digests first."""
    load_from(SharesReader(folder, ranks), targets)


def load_from(reader: "SharesReader", targets: dict[str, torch.Tensor]) -> None:
    """The same with a reader at hand. Raises OSError, EOFError, RuntimeError for a tensor that is not stored."""
    alone(dcp.load, targets, storage_reader=reader, planner=DefaultLoadPlanner(allow_partial_load=False))


class SharesReader(StorageReader):  # type: ignore[misc]
    """All shares of a folder as one checkpoint. `metadata` says what there is before anything is loaded."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder = folder
        self._chunks: dict[Place, Chunk] = {}
        self.metadata = Metadata(state_dict_metadata={})
        for rank in range(ranks):
            index = json.loads((folder / rank_folder_name(rank) / INDEX).read_bytes())
            for chunk in chunks_of(index, rank):
                self._merge(chunk)

    def sizes(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Type and size of every stored tensor."""
        found = self.metadata.state_dict_metadata
        return {key: (item.properties.dtype, tuple(item.size)) for key, item in found.items()}

    def digest(self, place: Place, algorithm: str) -> str | None:
        """Digest of the chunk at that place, None if no chunk begins there. What version 1 does not hold is computed
        from the file, whose own digest must have matched."""
        chunk = self._chunks.get(place)
        if chunk is None or chunk.digest is not None:
            return chunk.digest if chunk else None
        hasher, stored = new_hasher(algorithm), self._read(chunk, chunk.start, chunk.sizes)
        hasher.update(raw_bytes(stored))
        return f"{algorithm}:{hasher.hexdigest()}"

    def _merge(self, chunk: Chunk) -> None:
        if chunk.place in self._chunks:
            return  # a replica of a chunk that another rank stored too
        known = self.metadata.state_dict_metadata.setdefault(
            chunk.key, TensorStorageMetadata(TensorProperties(dtype=chunk.dtype), torch.Size(chunk.whole), [])
        )
        known.chunks.append(ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)))
        self._chunks[chunk.place] = chunk

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """DCP calls this before a load; one reader serves one load."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self.metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to prepare: the constructor read the indexes."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        direct, places = [], []
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                raise CheckpointError(f"{item.storage_index.fqn}: only tensors are stored as shards")
            chunk = self._chunks[item.storage_index.fqn, tuple(item.storage_index.offset)]
            target = planner.resolve_tensor(item).detach()
            if _is_plain(target) and _rows_only(item, chunk):
                places.append((self._path(chunk), _start(item, chunk), raw_bytes(target)))
                direct.append((item, target))
            else:
                target.copy_(self._part(item, chunk))
                planner.commit_tensor(item, target)
        reading.fill(places)
        for item, target in direct:
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _part(self, item: ReadItem, chunk: Chunk) -> torch.Tensor:
        """The stored region that an item asks for, in host memory: no more of the chunk than its rows."""
        if _rows_only(item, chunk):
            return self._read(chunk, _start(item, chunk), tuple(item.lengths))
        source = self._read(chunk, chunk.start, chunk.sizes)
        for axis, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            source = source.narrow(axis, offset, length)
        return source

    def _read(self, chunk: Chunk, start: int, sizes: tuple[int, ...]) -> torch.Tensor:
        found = torch.empty(sizes, dtype=chunk.dtype)
        reading.fill([(self._path(chunk), start, raw_bytes(found))])
        return found

    def _path(self, chunk: Chunk) -> Path:
        return self._folder / rank_folder_name(chunk.rank) / chunk.file

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


def _is_plain(target: torch.Tensor) -> bool:
    return target.device.type == "cpu" and target.is_contiguous() and not target.is_conj() and not target.is_neg()


def _rows_only(item: ReadItem, chunk: Chunk) -> bool:
    """True where the region is one stretch of the file: all of the chunk, or some of its rows."""
    return tuple(item.lengths[1:]) == chunk.sizes[1:]


def _start(item: ReadItem, chunk: Chunk) -> int:
    row = math.prod(chunk.sizes[1:]) * chunk.dtype.itemsize
    return chunk.start + (item.storage_offsets[0] * row if chunk.sizes else 0)
