"""torch.distributed.checkpoint on files of our own: raw tensor bytes and a JSON index per rank. No pickle.

Each rank gives DCP only its own share and plans alone, so a save needs no collective. A load merges the indexes of all
ranks into one `Metadata`; DCP then reads any region of any tensor, also for another number of ranks.

`rank-00000.d/tensors.bin`: the chunks' bytes, one after the other, each on a 64-byte boundary.
`rank-00000.d/index.json`: `{"version": 1, "tensors": {key: {"dtype", "size"}}, "chunks": [{"key", "offsets", "sizes",
"start", "bytes"}]}`.
"""

import json
import mmap
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_global_save_plan,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from worker_hooks.protocol.durable import encode_json, sync_folder
from worker_hooks.protocol.manifest import FileEntry, rank_folder_name
from worker_hooks.training.digests import local_tensor, new_hasher, raw_bytes
from worker_hooks.training.errors import CheckpointError

DATA = "tensors.bin"
INDEX = "index.json"
ALIGN = 64


def save_share(folder: Path, rank: int, tensors: Mapping[str, torch.Tensor], algorithm: str) -> list[FileEntry]:
    """Write this rank's share durably and return its files. Raises OSError as the storage gives it."""
    writer = ShareWriter(folder / rank_folder_name(rank), algorithm)
    _alone(dcp.save, dict(tensors), storage_writer=writer, planner=_SharePlanner())
    sync_folder(folder)
    return writer.files


def load_shares(folder: Path, ranks: int, targets: dict[str, torch.Tensor]) -> None:
    """Fill `targets` in place from the shares of all ranks. Verify the files' digests first."""
    reader = SharesReader(folder, ranks)
    try:
        _alone(dcp.load, targets, storage_reader=reader, planner=DefaultLoadPlanner(allow_partial_load=False))
    finally:
        reader.close()


def _alone(call: Any, state: dict[str, torch.Tensor], **options: Any) -> None:
    """DCP without its collectives. It warns that it assumes a single process: here that is the intention."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*intent is to (save|load) in a single process.*")
            call(state, no_dist=True, **options)
    except dcp.CheckpointException as error:
        cause = next(iter(error.failures.values()), (error,))[0]
        raise cause from None


class _SharePlanner(DefaultSavePlanner):  # type: ignore[misc]
    """The default planner demands that the plan covers every tensor whole; a share covers this rank's part."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False, enable_plan_caching=False)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        self.global_plan, self.metadata = create_default_global_save_plan(all_plans)
        return self.global_plan, self.metadata


class ShareWriter(StorageWriter):  # type: ignore[misc]
    """One rank's share into a new folder. `files` lists what was written, with digests, once DCP has finished."""

    def __init__(self, folder: Path, algorithm: str) -> None:
        self.files: list[FileEntry] = []
        self._folder = folder
        self._algorithm = algorithm
        self._index: dict[str, Any] = {"version": 1, "tensors": {}, "chunks": []}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """DCP calls this before a save; one writer serves one save."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._folder.mkdir(parents=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        hasher = new_hasher(self._algorithm)
        with (self._folder / DATA).open("xb") as file:
            for item in plan.items:
                if item.type is WriteItemType.BYTE_IO or item.tensor_data is None:
                    raise CheckpointError(f"{item.index.fqn}: only tensors are stored as shards")
                local = local_tensor(planner.resolve_data(item))
                self._note(item, file.tell(), local)
                padding = bytes(-(local.numel() * local.element_size()) % ALIGN)
                for part in (raw_bytes(local), padding):
                    hasher.update(part)
                    file.write(part)
            size = file.tell()
            file.flush()
            os.fsync(file.fileno())
        self._add(DATA, size, hasher.hexdigest())
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        data = encode_json(self._index)
        with (self._folder / INDEX).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        hasher = new_hasher(self._algorithm)
        hasher.update(data)
        self._add(INDEX, len(data), hasher.hexdigest())
        sync_folder(self._folder)

    def _note(self, item: Any, start: int, local: torch.Tensor) -> None:
        key, data = item.index.fqn, item.tensor_data
        self._index["tensors"][key] = {"dtype": str(local.dtype).removeprefix("torch."), "size": list(data.size)}
        self._index["chunks"].append(
            {
                "key": key,
                "offsets": list(data.chunk.offsets),
                "sizes": list(data.chunk.sizes),
                "start": start,
                "bytes": local.numel() * local.element_size(),
            }
        )

    def _add(self, name: str, size: int, digest: str) -> None:
        self.files.append(FileEntry(f"{self._folder.name}/{name}", size, f"{self._algorithm}:{digest}"))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


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
