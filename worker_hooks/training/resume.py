"""Choosing the checkpoint to resume from, and loading it.

Rank 0 lists what counts, newest first; the ranks share the work of reading every byte back; what does not match its
digest is quarantined with the reason and walked past. All ranks then load the same folder.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from worker_hooks.protocol import generations
from worker_hooks.protocol.generations import read_manifest, read_rank_file
from worker_hooks.protocol.manifest import Manifest, RankFile, RankRef
from worker_hooks.protocol.messages import MessageError
from worker_hooks.training.comms import Coordinator
from worker_hooks.training.digests import algorithm_of, file_digest
from worker_hooks.training.errors import CheckpointError, CheckpointMismatch
from worker_hooks.training.save import own_key
from worker_hooks.training.share_reader import SharesReader, load_from
from worker_hooks.training.tracked import Tracked


@dataclass(frozen=True)
class Source:
    """A verified checkpoint. `own` is this rank's file, `first` rank 0's; `exact` is False for a rank that is new."""

    folder: Path
    manifest: Manifest
    own: RankFile
    first: RankFile
    exact: bool

    def reader(self) -> SharesReader:
        return SharesReader(self.folder, self.manifest.world_size)

    def keys(self, reader: SharesReader) -> dict[str, str]:
        """Under which key each tensor that concerns this rank is stored, by its name in the tracked objects."""
        prefix = own_key(self.own.rank, "")
        mine = [key for key in reader.sizes() if not key.startswith("rank-") or key.startswith(prefix)]
        return {key.removeprefix(prefix): key for key in mine}


def choose(run: Path, coordinator: Coordinator, set_aside: Callable[[Path, str], None]) -> Source | None:
    """The newest checkpoint that counts and whose every byte matches; None if there is none. Collective.

    `set_aside(folder, reason)` is called on rank 0 for each one that does not. Storage that cannot be read at all is a
    CheckpointError: an outage says nothing about a checkpoint.
    """
    while True:
        name = coordinator.broadcast(_newest(run) if coordinator.rank == 0 else None)
        if name is None:
            return None
        folder = run / name
        problems = coordinator.gather(_problem(folder, coordinator.rank, coordinator.world_size))
        found = [problem for problem in problems if problem]
        if not found:
            return _source(folder, coordinator.rank)
        if coordinator.rank == 0:
            set_aside(folder, "; ".join(found))


def load(source: Source, tracked: Tracked, world_size: int) -> None:
    """Fill the tracked objects. Raises CheckpointMismatch where they are others than the stored ones."""
    parts = tracked.collect(world_size)
    fill, finish = tracked.targets(parts, source.own.state)
    reader = source.reader()
    kinds, keys = reader.sizes(), source.keys(reader)
    stored = {name: kinds[key] for name, key in keys.items()}
    fill |= _foreign(stored, fill, source.own.state)
    _compare(stored, fill)
    try:
        load_from(reader, {keys[name]: tensor for name, tensor in fill.items()})
    except (OSError, EOFError) as error:
        raise CheckpointError(f"loading {source.folder.name}: {error}") from error
    finish(fill)


def _newest(run: Path) -> str | None:
    try:
        return next(iter(generations.accepted_folders(run)), None)
    except OSError as error:
        raise CheckpointError(f"listing {run}: {error}") from error


def _problem(folder: Path, rank: int, world_size: int) -> str | None:
    """What is wrong with this rank's part of the reading, or None."""
    try:
        manifest = read_manifest(folder)
        for ref in manifest.ranks[rank::world_size]:
            problem = _rank_problem(folder, ref)
            if problem:
                return problem
        return None
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except MessageError as error:
        return str(error)
    except OSError as error:
        raise CheckpointError(f"reading {folder}: {error}") from error


def _rank_problem(folder: Path, ref: RankRef) -> str | None:
    if file_digest(folder / ref.file, algorithm_of(ref.digest)) != ref.digest:
        return f"{ref.file} does not match its digest"
    for entry in read_rank_file(folder, ref.rank).files:
        path = folder / entry.name
        size = path.stat().st_size
        if size != entry.bytes:
            return f"{entry.name} has {size} bytes, {entry.bytes} were written"
        if file_digest(path, algorithm_of(entry.digest)) != entry.digest:
            return f"{entry.name} does not match its digest"
    return None


def _source(folder: Path, rank: int) -> Source:
    manifest = read_manifest(folder)
    known = rank < manifest.world_size
    first = read_rank_file(folder, 0)
    return Source(folder, manifest, read_rank_file(folder, rank) if known else first, first, known)


def _foreign(stored: dict[str, Any], fill: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Tensors inside the state of other objects (an EMA, a scaler): made as they were stored."""
    return {
        key: torch.empty(size, dtype=dtype)
        for key, (dtype, size) in stored.items()
        if key not in fill and any(key == name or key.startswith(f"{name}.") for name in values)
    }


def _compare(stored: dict[str, Any], fill: dict[str, Any]) -> None:
    missing, unknown = sorted(set(fill) - set(stored)), sorted(set(stored) - set(fill))
    if missing or unknown:
        raise CheckpointMismatch(f"tensors not in the checkpoint: {missing}; only in the checkpoint: {unknown}")
    for key, tensor in fill.items():
        dtype, size = stored[key]
        if (dtype, size) != (tensor.dtype, tuple(tensor.shape)):
            raise CheckpointMismatch(f"{key}: stored as {dtype}{list(size)}, now {tensor.dtype}{list(tensor.shape)}")
