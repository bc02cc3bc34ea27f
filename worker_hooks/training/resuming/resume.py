"""Loading the newest checkpoint that counts and whose every byte matches its digest: one reading, agreed by all ranks.

Rank 0 names the newest candidate. Each rank compares its manifest, rank files and indexes, then loads, and the digests
are compared while the bytes arrive. What any rank found damaged is set aside with the reason and walked past by all.
A share may lie on nodes too (`tiers/sources`): a copy there that is bad is left out, and the same checkpoint is tried
from what is left. One of which a share is nowhere is walked past and not set aside: its node may come back.

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
from worker_hooks.protocol.manifest import Manifest
from worker_hooks.protocol.tiers import SHARED
from worker_hooks.training.comms import Coordinator
from worker_hooks.training.errors import CheckpointError, CheckpointMismatch, RestartedFromScratch
from worker_hooks.training.resuming.candidates import Source, bad_checkpoints, look_into, manifest_of, newest
from worker_hooks.training.resuming.share_reader import SharesReader
from worker_hooks.training.resuming.soundness import Damaged, Problem
from worker_hooks.training.state.tracked import Tracked
from worker_hooks.training.tiers.share_stream import Parts
from worker_hooks.training.tiers.sources import Ground, Sources

_TRIES = 16  # a node that cannot keep what is brought to it must not be tried for ever


class _Again(Exception):
    """A copy of a share was left out: the same checkpoint from what is left."""


class _NotWhole(Exception):
    """A share is nowhere. That is no damage: it may be back at the next attempt."""


class _Found(Exception):
    """`problems`: by rank."""

    def __init__(self, problems: list[list[Problem]]) -> None:
        super().__init__("; ".join(dict.fromkeys(problem.said for found in problems for problem in found)))
        self.problems = problems


@dataclass
class Loading:
    """One resume's load of one rank.

    `set_aside(folder, reason)` is called on rank 0 for each checkpoint found bad. `refuse(source)` may raise before
    anything of it is loaded. `lease` keeps retention away from the chosen one, as long as it is not closed. `tell(code,
    text)` is called on rank 0 with what happened to copies on nodes.
    """

    ground: Ground
    tracked: Tracked
    set_aside: Callable[[Path, str], None]
    refuse: Callable[[Source], object] = lambda source: None
    fresh_start: bool = False
    lease: ExitStack = field(default_factory=ExitStack)
    tell: Callable[[str, str], None] = lambda code, text: None

    def newest(self) -> Source | None:
        """Fills the tracked objects; None if the run never had a checkpoint. Collective.

        Storage that cannot be read is a CheckpointError on every rank: an outage says nothing about a checkpoint. So is
        a run whose checkpoints are all bad, unless `fresh_start` says that it may begin again at step 0. Objects that
        are others than the stored ones are a CheckpointMismatch on every rank.
        """
        ground, passed = self.ground, dict[str, str]()
        while True:
            found = self._agreed(lambda: newest(ground.run, passed) if self._first else None)[0]
            if found is None:
                bad = self._agreed(lambda: bad_checkpoints(ground.run) if self._first else [])[0]
                if (bad or passed) and not self.fresh_start:
                    raise RestartedFromScratch([*passed.values(), *bad])
                return None
            sources = Sources(ground, *found)
            try:
                source = self._from(sources)
            except _NotWhole as error:
                source, passed[sources.name] = None, f"{sources.name}: {error}"
                self._tell("checkpoint_not_whole", [passed[sources.name]])
            finally:
                self._tell("checkpoint_copy", sources.said)
                sources.close()
            if source is not None:
                return source
            self.lease.close()

    @property
    def _first(self) -> bool:
        return self.ground.coordinator.rank == 0

    def _tell(self, code: str, texts: list[str]) -> None:
        for text in texts if self._first else ():
            self.tell(code, text)

    def _from(self, sources: Sources) -> Source | None:
        """From whichever copies are good; None where the checkpoint was set aside. Raises _NotWhole."""
        if self.ground.local is None and SHARED not in sources.tiers:
            raise _NotWhole("its shares lie on nodes, and this attempt has no folder there (local=, RELUME_LOCAL)")
        for folder in sources.folders if self._first else ():
            self.lease.enter_context(leases.reading(folder))
        for _ in range(_TRIES):
            candidate = _Candidate(sources, self.ground.coordinator, self.tracked)
            try:
                self._load(candidate)
                return candidate.source
            except _Again:
                continue
            except _Found as found:
                wrong = sources.blame(found.problems)
                if candidate.touched and self.fresh_start:
                    raise CheckpointError(f"{sources.name} changed while it was loaded: {found}; start again") from None
            if wrong:
                if self._first:
                    self.set_aside(sources.folder, "; ".join(dict.fromkeys(wrong)))
                return None
        raise _NotWhole(f"no whole one after {_TRIES} tries: {'; '.join(sources.said)}")

    def _load(self, candidate: "_Candidate") -> None:
        """Raises _Found, _Again or _NotWhole, as all ranks found."""
        sources = candidate.sources
        self._together(sources, candidate.read)
        nowhere = sources.settle(candidate.manifest)
        if nowhere is not None:
            raise _NotWhole(nowhere)
        self._together(sources, candidate.look)
        self.refuse(candidate.source)
        self._together(sources, candidate.prepare)
        if sources.lacking:
            if not sources.bring(candidate.wanted()):
                raise _Again
            candidate.source.reader().find(sources.share)
        if self.fresh_start:
            self._together(sources, candidate.verify)
        self._together(sources, candidate.fill)
        self._together(sources, candidate.finish)

    def _together(self, sources: Sources, act: Callable[[], None]) -> None:
        """Raises _Found with what all ranks found damaged. Any other failure of one is the same error on all."""

        def tried() -> dict[str, Any]:
            try:
                act()
            except Damaged as error:
                return {"problems": error.problems}
            except CheckpointMismatch as error:
                return {"mismatch": str(error)}
            except OSError as error:
                problem = sources.broken(error)
                if problem is None:
                    raise
                return {"problems": [problem]}
            return {}

        said = self._agreed(tried)
        mismatches = dict.fromkeys(found["mismatch"] for found in said if "mismatch" in found)
        if mismatches:
            raise CheckpointMismatch(
                f"{sources.name} was saved from other objects than are tracked now: {'; '.join(mismatches)}. Track "
                "what was tracked then, built the same way; another model is another run, with a root of its own"
            )
        problems = [[Problem(*problem) for problem in found.get("problems", ())] for found in said]
        if any(problems):
            raise _Found(problems)

    def _agreed(self, look: Callable[[], Any]) -> list[Any]:
        """Every rank's finding by rank, on every rank. An outage that one rank meets is an error on all of them."""
        try:
            mine = {"found": look()}
        except OSError as error:
            mine = {"outage": f"rank {self.ground.coordinator.rank}: {error}"}
        said = self.ground.coordinator.gather(mine)
        outages = "; ".join(item["outage"] for item in said if "outage" in item)
        if outages:
            raise CheckpointError(f"storage cannot be read, which says nothing about the checkpoints: {outages}")
        return [item["found"] for item in said]


class _Candidate:
    """One checkpoint, step by step; each raises Damaged or OSError. Nothing is kept of it but `source`."""

    manifest: Manifest
    source: Source

    def __init__(self, sources: Sources, coordinator: Coordinator, tracked: Tracked) -> None:
        self.sources = sources
        self.touched = False
        self._coordinator = coordinator
        self._tracked = tracked
        self._fill: dict[str, torch.Tensor] = {}
        self._finish: Callable[[dict[str, torch.Tensor]], None] = lambda fill: None

    def read(self) -> None:
        self.manifest = manifest_of(self.sources.folder)

    def look(self) -> None:
        self.source = look_into(self.sources, self.manifest, self._coordinator.rank)

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

    def wanted(self) -> dict[int, Parts | None]:
        """What this rank reads of which shares."""
        return self.source.reader().wanted(self._targets())

    def fill(self) -> None:
        self.touched = True
        self.source.reader().load(self._targets())

    def _targets(self) -> dict[str, torch.Tensor]:
        keys = self.source.keys(self.source.reader())
        return {keys[name]: tensor for name, tensor in self._fill.items()}

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
