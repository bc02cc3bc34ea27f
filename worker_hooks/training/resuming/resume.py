"""Loading the newest checkpoint that counts and whose every byte matches its digest: one reading, agreed by all ranks.

Rank 0 names the newest candidate. Each rank compares its manifest, rank files and indexes, then loads, and the digests
are compared while the bytes arrive. What any rank found damaged is set aside with the reason and walked past by all.

A candidate that fails may leave anything in tensors that are alive. That is harmless: an older one is then loaded over
it whole, or no step is ever taken. Only `fresh_start` could go on with what is there, so with it every byte is compared
before the first tensor is touched.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from worker_hooks.protocol import leases
from worker_hooks.training.comms import Coordinator
from worker_hooks.training.errors import CheckpointError, CheckpointMismatch, RestartedFromScratch
from worker_hooks.training.resuming.candidates import Source, bad_checkpoints, look_into, newest
from worker_hooks.training.resuming.share_reader import SharesReader
from worker_hooks.training.resuming.soundness import Damaged, Problem
from worker_hooks.training.state.tracked import Tracked


@dataclass
class Loading:
    """One resume's load of one rank.

    `set_aside(folder, reason)` is called on rank 0 for each checkpoint found bad. `refuse(source)` may raise before
    anything of it is loaded. `lease` keeps retention away from the chosen one, as long as it is not closed.
    """

    run: Path
    coordinator: Coordinator
    tracked: Tracked
    set_aside: Callable[[Path, str], None]
    refuse: Callable[[Source], object] = lambda source: None
    fresh_start: bool = False
    lease: ExitStack = field(default_factory=ExitStack)

    def newest(self) -> Source | None:
        """Fills the tracked objects; None if the run never had a checkpoint. Collective.

        Storage that cannot be read is a CheckpointError on every rank: an outage says nothing about a checkpoint. So is
        a run whose checkpoints are all bad, unless `fresh_start` says that it may begin again at step 0. Objects that
        are others than the stored ones are a CheckpointMismatch on every rank.
        """
        first = self.coordinator.rank == 0
        while True:
            name = self._agreed(lambda: newest(self.run) if first else None)[0]
            if name is None:
                bad = self._agreed(lambda: bad_checkpoints(self.run) if first else [])[0]
                if bad and not self.fresh_start:
                    raise RestartedFromScratch(bad)
                return None
            candidate = _Candidate(self.run / name, self.coordinator, self.tracked)
            if first:
                self.lease.enter_context(leases.reading(candidate.folder))
            problems = self._load(candidate)
            if not problems:
                return candidate.source
            self.lease.close()
            if first:
                self.set_aside(candidate.folder, "; ".join(dict.fromkeys(problem.said for problem in problems)))

    def _load(self, candidate: "_Candidate") -> list[Problem]:
        """What is wrong with it, as all ranks found; nothing if it is loaded."""
        if problems := self._together(candidate.look):
            return problems
        self.refuse(candidate.source)
        if problems := self._together(candidate.prepare):
            return problems
        if self.fresh_start and (problems := self._together(candidate.verify)):
            return problems
        if problems := self._together(candidate.fill):
            if self.fresh_start:
                said = "; ".join(problem.said for problem in problems)
                raise CheckpointError(f"{candidate.folder.name} changed while it was loaded: {said}; start again")
            return problems
        candidate.finish()
        return []

    def _together(self, act: Callable[[], None]) -> list[Problem]:
        """What all ranks found damaged. Any other failure of one is the same error on all of them."""

        def tried() -> dict[str, Any]:
            try:
                act()
            except Damaged as error:
                return {"problems": error.problems}
            except CheckpointMismatch as error:
                return {"mismatch": str(error)}
            return {}

        said = self._agreed(tried)
        mismatches = dict.fromkeys(found["mismatch"] for found in said if "mismatch" in found)
        if mismatches:
            raise CheckpointMismatch("; ".join(mismatches))
        return [Problem(*problem) for found in said for problem in found.get("problems", ())]

    def _agreed(self, look: Callable[[], Any]) -> list[Any]:
        """Every rank's finding by rank, on every rank. An outage that one rank meets is an error on all of them."""
        try:
            mine = {"found": look()}
        except OSError as error:
            mine = {"outage": f"rank {self.coordinator.rank}: {error}"}
        said = self.coordinator.gather(mine)
        outages = "; ".join(item["outage"] for item in said if "outage" in item)
        if outages:
            raise CheckpointError(f"storage cannot be read, which says nothing about the checkpoints: {outages}")
        return [item["found"] for item in said]


class _Candidate:
    """One checkpoint, step by step; each raises Damaged or OSError. Nothing is kept of it but `source`."""

    source: Source

    def __init__(self, folder: Path, coordinator: Coordinator, tracked: Tracked) -> None:
        self.folder = folder
        self._coordinator = coordinator
        self._tracked = tracked
        self._fill: dict[str, torch.Tensor] = {}
        self._finish: Callable[[dict[str, torch.Tensor]], None] = lambda fill: None

    def look(self) -> None:
        self.source = look_into(self.folder, self._coordinator.rank, self._coordinator.world_size)

    def prepare(self) -> None:
        """The tensors to fill. Raises CheckpointMismatch."""
        values = self.source.own.state
        parts = self._tracked.collect(self._coordinator.world_size)
        self._fill, self._finish = self._tracked.targets(parts, values)
        stored = self._stored(self.source.reader())
        self._fill |= _foreign(stored, self._fill, values)
        _compare(stored, self._fill)

    def verify(self) -> None:
        self.source.reader().verify()

    def fill(self) -> None:
        reader = self.source.reader()
        keys = self.source.keys(reader)
        reader.load({keys[name]: tensor for name, tensor in self._fill.items()})

    def finish(self) -> None:
        """Hand the full tensors and the plain values to the objects."""
        self._finish(self._fill)

    def _stored(self, reader: SharesReader) -> dict[str, Any]:
        kinds = reader.sizes()
        return {name: kinds[key] for name, key in self.source.keys(reader).items()}


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
