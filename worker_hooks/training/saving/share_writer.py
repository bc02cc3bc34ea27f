"""A staged share into files of our own, by torch.distributed.checkpoint's extension points: raw bytes and a JSON index.

Each rank plans and writes its own share alone, so a save needs no collective (docs/formats.md section 6). The steps of
`dcp.save` are taken here one by one: it warns of a single process each time, and a thread beside training must not
change the warning filters. `plan` and `metadata` come from the deal, so that a save plans nothing.

`rank-00000.d/tensors.bin`: the chunks' bytes, one after the other, each on a 64-byte boundary. What did not change
since the save before lies in `kept-<digest>.bin` instead, a hard link to the same file of that save.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from worker_hooks.protocol.durable import encode_json, sync_folder
from worker_hooks.protocol.manifest import MANIFEST, QUARANTINE, FileEntry, rank_folder_name
from worker_hooks.training.files.digests import new_hasher
from worker_hooks.training.files.share_files import DATA, INDEX
from worker_hooks.training.files.writing import takes_direct, write_file
from worker_hooks.training.saving.chunk_digests import ImageDigests
from worker_hooks.training.saving.shares import Share, plan_share
from worker_hooks.training.saving.staging import Buffer, Image, PieceStage, Stage, lay_out, room

Place = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Written:
    """A share on disk. `digests` by place; `linked` bytes were not written again; `kept` is the path of that file."""

    files: tuple[FileEntry, ...]
    digests: Mapping[Place, str]
    finite: bool
    linked: int
    kept: Path | None

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.files)


def write_share(
    folder: Path,
    rank: int,
    staged: Stage | PieceStage,
    algorithm: str,
    *,
    checked: Collection[int] = (),
    kept: Sequence[Path] = (),
) -> Written:
    """Write this rank's share durably. `kept`: files of earlier saves that may be linked, the newest first.

    Raises OSError as the storage gives it, with the name of the file.
    """
    writer = ShareWriter(folder / rank_folder_name(rank), staged, algorithm, checked=checked, kept=kept)
    planner = SharePlanner(staged.share)
    planner.set_up_planner({}, None, True)
    writer.set_up_storage_writer(True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([plan])
    (plan,) = writer.prepare_global_plan(plans)
    results = writer.write_data(planner.finish_plan(plan), planner).wait()
    writer.finish(metadata, [results])
    sync_folder(folder)
    return writer.written


def save_share(folder: Path, rank: int, tensors: Mapping[str, torch.Tensor], algorithm: str) -> list[FileEntry]:
    """Stage and write in one go, with a buffer of its own."""
    share = plan_share(tensors)
    images = lay_out(share.chunks)
    stage = Stage(share, images, Buffer(room(images)))
    stage.fill(share.tensors(tensors))
    return list(write_share(folder, rank, stage, algorithm).files)


class SharePlanner(DefaultSavePlanner):  # type: ignore[misc]
    """The plan that the deal made. The default planner would demand that it covers every tensor whole."""

    def __init__(self, share: Share) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False, enable_plan_caching=False)
        self._share = share

    def create_local_plan(self) -> SavePlan:
        self.plan = self._share.plan
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        self.global_plan, self.metadata = all_plans, Metadata(state_dict_metadata={})
        return self.global_plan, self.metadata


class ShareWriter(StorageWriter):  # type: ignore[misc]
    """One staged share into a new folder. `written` says what is there, once `finish` has returned."""

    def __init__(
        self,
        folder: Path,
        staged: Stage | PieceStage,
        algorithm: str,
        *,
        checked: Collection[int] = (),
        kept: Sequence[Path] = (),
    ) -> None:
        self._folder = folder
        self._staged = staged
        self._algorithm = algorithm
        self._checked = checked
        self._candidates = kept
        self._files: list[FileEntry] = []
        self._digests: dict[Place, str] = {}
        self._finite = True
        self._linked = 0
        self._kept: Path | None = None
        self._index: dict[str, Any] = {"version": 2, "tensors": {}, "chunks": []}

    @property
    def written(self) -> Written:
        return Written(tuple(self._files), self._digests, self._finite, self._linked, self._kept)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """One writer serves one save."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._folder.mkdir(parents=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """The plan's items are the share's chunks, in that order: the staged images hold them already."""
        main, apart = self._staged.images
        self._write(DATA, main, plan.items)
        if apart.placed:
            self._write_or_link(apart, plan.items)
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
        self._add(INDEX, len(data), f"{self._algorithm}:{hasher.hexdigest()}")
        sync_folder(self._folder)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False

    # --- files ------------------------------------------------------------------------------------------------------

    def _write(self, name: str, image: Image, items: list[WriteItem]) -> None:
        digests = self._watch(image)
        direct = takes_direct(self._folder)
        windows, lasting = self._staged.windows(image), isinstance(self._staged, Stage)
        write_file(self._folder / name, windows, image.bytes, digests, direct=direct, lasting=lasting)
        self._note(name, image, items, digests)

    def _write_or_link(self, image: Image, items: list[WriteItem]) -> None:
        digests = self._watch(image)
        for window in self._staged.windows(image):
            digests.feed(window[: image.bytes])
        name = f"kept-{digests.file.partition(':')[2]}.bin"
        if any(path.name == name and self._link(path) for path in self._candidates):
            self._linked = image.bytes
            self._note(name, image, items, digests)
        else:
            self._write(name, image, items)
        self._kept = self._folder / name

    def _link(self, path: Path) -> bool:
        """Only to what is committed and was not found damaged since. A file system without hard links writes again."""
        checkpoint = path.parent.parent
        if not (checkpoint / MANIFEST).exists() or (checkpoint / QUARANTINE).exists():
            return False
        try:
            os.link(path, self._folder / path.name)
        except OSError:
            return False
        return True

    def _watch(self, image: Image) -> ImageDigests:
        return ImageDigests(
            self._algorithm, self._staged.share.chunks, image.placed, self._checked, begin=self._staged.complete
        )

    def _note(self, name: str, image: Image, items: list[WriteItem], digests: ImageDigests) -> None:
        digests.finish()
        self._finite = self._finite and digests.finite
        self._add(name, image.bytes, digests.file)
        for placed in image.placed:
            chunk, tensor = self._staged.share.chunks[placed.index], items[placed.index].tensor_data
            digest = self._digests[chunk.place] = digests.chunks[placed.index]
            self._index["tensors"][chunk.key] = {
                "dtype": str(chunk.dtype).removeprefix("torch."),
                "size": list(tensor.size),
            }
            self._index["chunks"].append(
                {
                    "key": chunk.key,
                    "offsets": list(chunk.offsets),
                    "sizes": list(chunk.sizes),
                    "file": name,
                    "start": placed.start,
                    "bytes": placed.bytes,
                    "digest": digest,
                }
            )

    def _add(self, name: str, size: int, digest: str) -> None:
        self._files.append(FileEntry(f"{self._folder.name}/{name}", size, digest))
