"""Choosing the checkpoint to resume from, and loading it.

Rank 0 lists what counts, newest first; the ranks share the work of reading every byte back; what does not match its
digest is quarantined with the reason and walked past. All ranks then load the same folder.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from worker_hooks.protocol import generations
from worker_hooks.protocol.generations import read_manifest, read_rank_file
from worker_hooks.protocol.manifest import MANIFEST, QUARANTINE, Manifest, RankFile, parse_folder
from worker_hooks.protocol.messages import MessageError
from worker_hooks.training.comms import Coordinator
from worker_hooks.training.errors import CheckpointError, CheckpointMismatch, RestartedFromScratch
from worker_hooks.training.resuming.share_reader import SharesReader, load_from
from worker_hooks.training.resuming.soundness import problem
from worker_hooks.training.saving.shares import own_key
from worker_hooks.training.state.tracked import Tracked

FAILED_VERIFICATION = "failed verification"


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


def choose(
    run: Path, coordinator: Coordinator, set_aside: Callable[[Path, str], None], *, fresh_start: bool = False
) -> Source | None:
    """The newest checkpoint that counts and whose every byte matches; None if the run never had one. Collective.

    `set_aside(folder, reason)` is called on rank 0 for each one that does not. Storage that cannot be read at all is a
    CheckpointError on every rank: an outage says nothing about a checkpoint. So is a run whose checkpoints are all bad,
    unless `fresh_start` says that it may begin again at step 0.
    """
    while True:
        name = _agreed(coordinator, lambda: _newest(run) if coordinator.rank == 0 else None)[0]
        if name is None:
            bad = _agreed(coordinator, lambda: bad_checkpoints(run) if coordinator.rank == 0 else [])[0]
            if bad and not fresh_start:
                raise RestartedFromScratch(bad)
            return None
        folder = run / name
        found = _agreed(coordinator, partial(problem, folder, coordinator.rank, coordinator.world_size))
        if not any(found):
            return _source(folder, coordinator.rank)
        if coordinator.rank == 0:
            set_aside(folder, "; ".join(filter(None, found)))


def may_walk_back(run: Path, folder: str) -> bool:
    """Whether a checkpoint whose resume failed is worth setting aside: there is one before it, and none was set aside
    for that since it was saved. Otherwise one defect would use up every checkpoint, attempt by attempt."""
    place = parse_folder(folder)
    try:
        others = [name for name in generations.accepted_folders(run) if name != folder]
        failed = [_failed_in(note) for note in run.glob(f"step-*/{QUARANTINE}")]
    except (OSError, MessageError):
        return False
    return bool(others) and place is not None and all(generation < place[1] for generation in failed)


def _failed_in(note: Path) -> int:
    """The generation that set a folder aside for a failed verification; 0 for another reason."""
    try:
        said = json.loads(note.read_bytes())
        return int(said["generation"]) if said["reason"].startswith(FAILED_VERIFICATION) else 0
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0


def pointer_problem(run: Path, chosen: str) -> str | None:
    """What `latest` says, where that is another folder than the one chosen: it is a hint, and followed by nobody."""
    try:
        said = (run / "latest").read_bytes().decode(errors="replace").strip()
    except OSError:
        return None
    if said == chosen:
        return None
    state = "stale" if parse_folder(said) and (run / said).is_dir() else "dangling"
    return f"latest is a {state} pointer: it names {said[:80]!r}, the newest that verifies is {chosen}"


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


def _agreed(coordinator: Coordinator, look: Callable[[], Any]) -> list[Any]:
    """Every rank's finding by rank, on every rank. An outage that one rank meets is an error on all of them."""
    try:
        mine = {"found": look()}
    except OSError as error:
        mine = {"outage": f"rank {coordinator.rank}: {error}"}
    said = coordinator.gather(mine)
    outages = [item["outage"] for item in said if "outage" in item]
    if outages:
        raise CheckpointError(f"storage cannot be read, which says nothing about the checkpoints: {'; '.join(outages)}")
    return [item["found"] for item in said]


def _newest(run: Path) -> str | None:
    try:
        return next(iter(generations.accepted_folders(run)), None)
    except MessageError as error:
        raise OSError(f"{run / generations.GENERATIONS}: {error}") from None


def bad_checkpoints(run: Path) -> list[str]:
    """Once committed, then found bad: folder and reason, newest first."""
    found = []
    for folder in sorted(run.glob("step-*"), key=lambda path: parse_folder(path.name) or (0, 0), reverse=True):
        if (folder / MANIFEST).exists() and (folder / QUARANTINE).exists():
            found.append(f"{folder.name}: {_reason(folder / QUARANTINE)}")
    return found


def _reason(note: Path) -> str:
    try:
        return str(json.loads(note.read_bytes())["reason"])
    except (ValueError, KeyError, TypeError):
        return "quarantined"


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
