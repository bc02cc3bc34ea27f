"""All ranks' shares of a checkpoint read as one through torch.distributed.checkpoint. No pickle.

A load merges the indexes of all ranks into one `Metadata`; DCP then reads any region of any tensor, also for another
number of ranks. The files: docs/formats.md section 6.
"""

import json
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from worker_hooks.protocol.manifest import rank_folder_name
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.share_files import DATA, INDEX, alone


def load_shares(folder: Path, ranks: int, targets: dict[str, torch.Tensor]) -> None:
    """Fill `targets` in place from the shares of all ranks. Verify the files' digests first."""
    reader = SharesReader(folder, ranks)
    try:
        alone(dcp.load, targets, storage_reader=reader, planner=DefaultLoadPlanner(allow_partial_load=False))
    finally:
        reader.close()


@dataclass(frozen=True)
class _Chunk:
    rank: int
    start: int
    bytes: int
    sizes: tuple[int, ...]
    dtype: torch.dtype


class SharesReader(StorageReader):  # type: ignore[misc]
    """All shares of a folder as one checkpoint. `metadata` says what there is before anything is loaded."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder = folder
        self._maps: dict[int, mmap.mmap] = {}
        self._chunks: dict[MetadataIndex, _Chunk] = {}
        self.metadata = Metadata(state_dict_metadata={})
        for rank in range(ranks):
            self._merge(rank, json.loads((folder / rank_folder_name(rank) / INDEX).read_bytes()))

    def sizes(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Type and size of every stored tensor."""
        found = self.metadata.state_dict_metadata
        return {key: (item.properties.dtype, tuple(item.size)) for key, item in found.items()}

    def _merge(self, rank: int, index: dict[str, Any]) -> None:
        for chunk in index["chunks"]:
            key, offsets = chunk["key"], torch.Size(chunk["offsets"])
            place = MetadataIndex(key, offsets)
            if place in self._chunks:
                continue  # a replica of a chunk that another rank stored too
            tensor = index["tensors"][key]
            dtype = getattr(torch, tensor["dtype"])
            known = self.metadata.state_dict_metadata.setdefault(
                key, TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(tensor["size"]), [])
            )
            known.chunks.append(ChunkStorageMetadata(offsets, torch.Size(chunk["sizes"])))
            self._chunks[place] = _Chunk(rank, chunk["start"], chunk["bytes"], tuple(chunk["sizes"]), dtype)

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
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                raise CheckpointError(f"{item.storage_index.fqn}: only tensors are stored as shards")
            source = self._tensor(self._chunks[item.storage_index])
            for axis, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                source = source.narrow(axis, offset, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(source)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def close(self) -> None:
        """Forget the mappings; each ends when the last tensor over it is gone."""
        self._maps.clear()

    def _tensor(self, chunk: _Chunk) -> torch.Tensor:
        if chunk.bytes == 0:
            return torch.empty(chunk.sizes, dtype=chunk.dtype)
        data = self._map(chunk.rank)
        count = chunk.bytes // chunk.dtype.itemsize
        return torch.frombuffer(data, dtype=chunk.dtype, count=count, offset=chunk.start).view(chunk.sizes)

    def _map(self, rank: int) -> mmap.mmap:
        if rank not in self._maps:
            with (self._folder / rank_folder_name(rank) / DATA).open("rb") as file:
                # A private mapping is writable, which is what frombuffer asks for; nothing ever writes to it.
                self._maps[rank] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._maps[rank]

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False
