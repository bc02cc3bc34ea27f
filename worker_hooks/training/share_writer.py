"""torch.distributed.checkpoint into files of our own: raw tensor bytes and a JSON index per rank. No pickle.

Each rank gives DCP only its own share and plans alone, so a save needs no collective (docs/formats.md section 6).

`rank-00000.d/tensors.bin`: the chunks' bytes, one after the other, each on a 64-byte boundary.
`rank-00000.d/index.json`: `{"version": 1, "tensors": {key: {"dtype", "size"}}, "chunks": [{"key", "offsets", "sizes",
"start", "bytes"}]}`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, create_default_global_save_plan
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from worker_hooks.protocol.durable import encode_json, sync_folder
from worker_hooks.protocol.manifest import FileEntry, rank_folder_name
from worker_hooks.training.digests import local_tensor, new_hasher, raw_bytes
from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.share_files import ALIGN, DATA, INDEX, alone


def save_share(folder: Path, rank: int, tensors: Mapping[str, torch.Tensor], algorithm: str) -> list[FileEntry]:
    """Write this rank's share durably and return its files. Raises OSError as the storage gives it."""
    writer = ShareWriter(folder / rank_folder_name(rank), algorithm)
    alone(dcp.save, dict(tensors), storage_writer=writer, planner=_SharePlanner())
    sync_folder(folder)
    return writer.files


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
