"""All ranks' shares of a checkpoint read as one by torch.distributed.checkpoint, and compared on the way. No pickle.

The indexes of all shares make one `Metadata`; DCP then plans any region of any tensor, also for another number of
ranks. What it planned is read file by file (`share_pass`), and no byte counts before its digest matched: `problems`
says which files' did not. The files: docs/formats.md section 6.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
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
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.files.digests import DEFAULT, bytes_digest
from worker_hooks.training.files.reading import Reading, Segment
from worker_hooks.training.files.share_files import INDEX, alone
from worker_hooks.training.resuming.share_index import Chunk, Place
from worker_hooks.training.resuming.share_pass import FilePass, Want, most_of
from worker_hooks.training.resuming.soundness import GONE, Damaged, Problem, Share, gone
from worker_hooks.training.tiers.share_stream import Parts


def _parts(share: Share, chunks: set[Chunk]) -> Parts | None:
    parts: dict[str, list[tuple[int, int]]] = {}
    for chunk in sorted(chunks, key=lambda chunk: (chunk.file, chunk.start)):
        if chunk.digest is None:
            return None
        parts.setdefault(share.entry(chunk).name, []).append((chunk.start, chunk.bytes))
    whole = any(most_of(entry, (chunk for chunk in chunks if share.entry(chunk) == entry)) for entry in share.files)
    return None if whole else parts


class SharesReader(StorageReader):  # type: ignore[misc]
    """`metadata` says what there is before anything is loaded. This rank answers for every byte of the shares `whole`;
    of the others it reads, and compares, what it wants."""

    def __init__(self, shares: Iterable[Share], whole: Collection[int] = ()) -> None:
        self.problems: list[Problem] = []
        self.used: set[int] = set()  # the shares of which something was read
        self._shares = {share.rank: share for share in shares}
        self._whole = whole
        self._chunks: dict[Place, Chunk] = {}
        self.metadata = Metadata(state_dict_metadata={})
        for share in self._shares.values():
            for chunk in share.chunks:
                self._merge(chunk)

    def load(self, targets: dict[str, torch.Tensor]) -> None:
        """Fill `targets` in place. Raises OSError, Damaged where a digest did not match (the targets then hold
        anything), RuntimeError for a tensor that is not stored."""
        alone(dcp.load, targets, storage_reader=self, planner=DefaultLoadPlanner(allow_partial_load=False))
        self._demand()

    def wanted(self, targets: dict[str, torch.Tensor]) -> dict[int, Parts | None]:
        """Which shares a load of these reads from: the stretches of their files, or None where it reads whole files."""
        planner = DefaultLoadPlanner(allow_partial_load=False)
        planner.set_up_planner(dict(targets), self.metadata, True)
        by_share: dict[int, set[Chunk]] = defaultdict(set)
        for item in planner.create_local_plan().items:
            chunk = self._chunks[item.storage_index.fqn, tuple(item.storage_index.offset)]
            by_share[chunk.rank].add(chunk)
        found = {rank: _parts(self._shares[rank], chunks) for rank, chunks in by_share.items()}
        return {**found, **dict.fromkeys(self._whole)}

    def find(self, share: Callable[[int], Path]) -> None:
        """From now on each share is read where this says."""
        self._shares = {rank: replace(known, folder=share(rank)) for rank, known in self._shares.items()}

    def verify(self) -> None:
        """Read what this rank answers for and compare it, touching nothing. Raises OSError, Damaged."""
        self._read([])
        self._demand()

    def sizes(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Type and size of every stored tensor."""
        found = self.metadata.state_dict_metadata
        return {key: (item.properties.dtype, tuple(item.size)) for key, item in found.items()}

    def digest(self, place: Place, sizes: tuple[int, ...]) -> str | None:
        """Digest of the chunk of these sizes at that place, None if there is no such chunk. What version 1 does not
        hold is computed from the file, whose own digest must have matched."""
        chunk = self._chunks.get(place)
        if chunk is None or chunk.sizes != sizes:
            return None
        if chunk.digest is not None:
            return chunk.digest
        share, stored = self._shares[chunk.rank], memoryview(bytearray(chunk.bytes))
        with Reading() as reading:
            reading.read(share.path(share.entry(chunk).name), [Segment(chunk.start, chunk.bytes, stored)])
        return bytes_digest(stored, DEFAULT)

    def digests(self) -> dict[Place, str]:
        """Of every chunk that has one (index version 2), all ranks' own included."""
        return {place: chunk.digest for place, chunk in self._chunks.items() if chunk.digest is not None}

    def _merge(self, chunk: Chunk) -> None:
        if chunk.place in self._chunks:
            return  # a replica of a chunk that another rank stored too
        known = self.metadata.state_dict_metadata.setdefault(
            chunk.key, TensorStorageMetadata(TensorProperties(dtype=chunk.dtype), torch.Size(chunk.whole), [])
        )
        known.chunks.append(ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)))
        self._chunks[chunk.place] = chunk

    # --- what DCP calls ---------------------------------------------------------------------------------------------

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """DCP calls this before a load; one reader serves one load."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self.metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to prepare: the indexes are known."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        wants = []
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                raise CheckpointError(f"{item.storage_index.fqn}: only tensors are stored as shards")
            chunk = self._chunks[item.storage_index.fqn, tuple(item.storage_index.offset)]
            wants.append(Want(chunk, item, planner.resolve_tensor(item).detach()))
        self._read(wants)
        for want in wants:
            planner.commit_tensor(want.item, want.target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False

    # --- files ------------------------------------------------------------------------------------------------------

    def _read(self, wants: list[Want]) -> None:
        by_file: dict[tuple[int, str], list[Want]] = defaultdict(list)
        for want in wants:
            share = self._shares[want.chunk.rank]
            by_file[share.rank, share.entry(want.chunk).name].append(want)
        passes = []
        with Reading() as reading:
            for share in self._shares.values():
                for entry in share.files:
                    wanted, answers = by_file.get((share.rank, entry.name), []), share.rank in self._whole
                    if (wanted or answers) and not entry.name.endswith(f"/{INDEX}"):  # that one was compared before
                        passes.append((share, FilePass(entry, wanted, answers=answers)))
                        self.used.add(share.rank)
                        self._pass(reading, *passes[-1])
        self.problems += [Problem(share.rank, said) for share, one in passes for said in one.problems()]

    def _pass(self, reading: Reading, share: Share, one: FilePass) -> None:
        try:
            reading.read(share.path(one.entry.name), one.segments(), whole=one.whole)
        except GONE as error:
            one.ended()
            self.problems.append(gone(share.rank, share.folder, error))
        except EOFError:
            one.ended()
            self.problems.append(Problem(share.rank, f"{one.entry.name} is shorter than it was written"))

    def _demand(self) -> None:
        if self.problems:
            raise Damaged(self.problems)
