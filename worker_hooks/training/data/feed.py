"""The data position of a tracked loader: where it is, how to get back there, and what that did to the samples.

`loader_kinds` tells the kinds of loader apart. Where the place of each sample in the epoch is known (`resumable`,
`distributed`) the position counts samples of the whole job, otherwise batches of this rank.
"""

from collections.abc import Iterator
from typing import Any

from worker_hooks.training.data import accounting, loader_kinds, sample_random
from worker_hooks.training.data.epoch_start import EpochStart
from worker_hooks.training.data.ledger import LEFT_OUT, REPEATED, SKIPPED, UNKNOWN, Entry, Ledger, alarms, is_sound
from worker_hooks.training.errors import CheckpointError, CheckpointMismatch
from worker_hooks.training.files.digests import value_digest
from worker_hooks.training.sabotage import Sabotage

# name, outcome, expected, actual, and for a known mistake its code and why
Check = tuple[str, str, Any, Any] | tuple[str, str, Any, Any, str, str]


class Feed:
    """Batches handed to the training loop are consumed; what workers prefetched beyond is not."""

    def __init__(self, loader: Any, sabotage: Sabotage) -> None:
        self.loader = loader
        self.kind = loader_kinds.kind_of(loader)
        self._order = loader_kinds.order_of(loader)
        self._ranks = self._order.ranks if self._order is not None else loader_kinds.world_size()
        self.ledger = Ledger("samples" if self._order is not None else "batches")
        self._sabotage = sabotage
        self._epoch = 0
        self._batches = 0  # of this epoch, over all attempts
        self._base, self._base_batches = 0, 0  # where this iteration began: samples consumed, batches
        self._over = False
        self._start = EpochStart(loader)
        self._resume: dict[str, Any] | None = None
        self._iterator: Iterator[Any] | None = None
        self._ahead: int | None = 0
        self._next_ids: str | None = None
        self._found: list[Entry] = []
        self._batch_before: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Also tells whatever the loader has that wants to know."""
        if self._resume is not None and epoch != self._resume["epoch"]:  # the rest of that epoch was never asked for
            loader_kinds.restore_generators(self.loader, self._resume.get("generators", {}))
            self._resume = None
        self._epoch = epoch
        if self._resume is None:
            self._restart()
        sample_random.tell_epoch(self.loader, epoch)

    def _restart(self) -> None:
        self._batches = self._base = self._base_batches = 0
        self._over = False

    # --- saving -------------------------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        """JSON: where the next batch comes from. What was loaded and not used yet is where it was."""
        if self._resume is not None:
            return self._resume
        found = {
            "kind": self.kind,
            "ranks": self._ranks,
            "num_workers": getattr(self.loader, "num_workers", None),
            **self._where(self._next_ids_digest()),
            "over": self._over,
            "open": self._iterator is not None,
            "global_batch": self.global_batch,
            "prefetched": self._prefetched(),
            "generators": loader_kinds.capture_generators(self.loader),
            "ledger": self.ledger.record(),
        }
        if self.kind == "stateful":
            found["loader_state"] = loader_kinds.read_state(self.loader)
        elif self.kind == "dataset":
            found["dataset_state"] = loader_kinds.read_state(self.loader.dataset)
        elif self.kind != "resumable":
            found |= self._start.record()
        return found

    def _where(self, next_ids: str | None) -> dict[str, Any]:
        length = loader_kinds.length(self.loader)
        found: dict[str, Any] = {"epoch": self._epoch, "batches": self._batches, "epoch_length": length}
        if self._order is not None:
            found |= {"consumed": self._consumed, "sampler_seed": self._order.seed}
        if next_ids is not None:
            found["next_ids_digest"] = next_ids
        return found

    # --- resuming -----------------------------------------------------------------------------------------------

    def resume(self, position: dict[str, Any]) -> None:
        """The next iteration continues from `position`, on whatever number of ranks it was saved."""
        saved = loader_kinds.kind_at_the_save(position)
        if not loader_kinds.same_kind(saved, self.kind):
            raise CheckpointMismatch(f"the loader is another kind than at the save: {saved} then, {self.kind} now")
        if self.kind == "stateful":
            loader_kinds.demand_workers(self.loader, position)
        self._resume = position
        self._batch_before = position.get("global_batch")
        self._epoch, self._over = position["epoch"], position.get("over", False)
        batches = position["batches"]
        self._batches = self._base_batches = self._sabotage.batches(batches)
        moved = self._batches - batches
        if self._order is not None:
            self._base = self._begin_at(self._samples(position), moved)
        self._read_ledger(position)

    def _samples(self, position: dict[str, Any]) -> int:
        """Samples consumed by the whole job, from before they were written for this kind too."""
        assert self._order is not None
        if "consumed" in position:
            return int(position["consumed"])
        share: int = min(position["batches"] * loader_kinds.batch_size(self.loader), self._order.rest(0))
        return share * self._ranks

    def _begin_at(self, consumed: int, moved: int) -> int:
        assert self._order is not None
        together = loader_kinds.batch_size(self.loader) * self._ranks
        unfinished = loader_kinds.batches_in(self.loader, self._order.rest(consumed)) > 0
        if self.kind == "distributed" and unfinished and consumed % together:
            raise CheckpointError(
                f"{consumed} samples were consumed, which is no whole number of batches of {together // self._ranks} "
                f"on {self._ranks} ranks, and a DistributedSampler starts nowhere else; choose another batch size or a "
                "ResumableSampler"
            )
        return max(0, min(consumed + moved * together, max(consumed, self._order.size)))

    def _read_ledger(self, position: dict[str, Any]) -> None:
        unit = self.ledger.unit
        if position.get("ledger", {}).get("unit") == unit:
            self.ledger = Ledger.read(position["ledger"])
        else:  # from before there was one
            self.ledger.begin(self._epoch, 0, ranks=position.get("ranks", self._ranks), size=None)
            self.ledger.advance(self._samples(position) if self._order is not None else position["batches"])
        self.ledger.discard(position.get("prefetched") or 0, position.get("ranks", self._ranks))

    @property
    def resuming(self) -> bool:
        """The next iteration continues one that was open at the save, without drawing what it drew at its start."""
        return self._resume is not None and not self._begins(self._resume)

    @property
    def pending(self) -> bool:
        """A place was loaded and the loader not opened since."""
        return self._resume is not None

    def _begins(self, position: dict[str, Any]) -> bool:
        """Nothing of that epoch had been asked for: to open it is what it would have been."""
        untouched = not position.get("open", True) and not position["batches"] and not position.get("over")
        return untouched and self.kind not in ("stateful", "dataset")

    def actual(self) -> dict[str, Any]:
        """Where the iteration that was just opened really starts, for the verification."""
        return self._where(self._next_ids)

    def checks(self) -> list[Check]:
        """For the verification: (name, outcome, expected, actual) of the samples and of their random numbers."""
        told = [*alarms(self._found), *(entry.text(self.ledger.unit) for entry in self._found), self.ledger.text()]
        found: list[Check] = [("data_ledger", "PASS" if is_sound(self._found) else "DEGRADED", None, "; ".join(told))]
        if self._batch_before not in (None, self.global_batch):
            found.append(("global_batch", "DEGRADED", self._batch_before, self.global_batch))
        doubt = sample_random.doubt(self.loader)
        return [*found, *([("sample_random", "DEGRADED", None, doubt)] if doubt else [])]

    def accounted(self, step: int, accumulation: int) -> list[Check]:
        """The place against `step` updates of `accumulation` batches each. Nothing to say after another batch size, or
        where an epoch was not trained in order."""
        faults = sum(self.ledger.totals[kind] for kind in (REPEATED, SKIPPED, UNKNOWN))
        if self._order is None or faults or self._batch_before != self.global_batch:
            return []
        size, share = loader_kinds.batch_size(self.loader), self._order.rest(0)
        whole = loader_kinds.batches_in(self.loader, share)
        remainder = max(0, self._order.size - min(whole * size, share) * self._ranks)
        early = self.ledger.totals[LEFT_OUT] - remainder * (self._epoch + self._over)
        place = accounting.Place(self._epoch, self._batches, whole, size * self._ranks, early)
        return [accounting.check(place, step, accumulation)]

    def open(self) -> Iterator[Any]:
        """The batches from here to the end of the epoch. What draws random numbers at the start has drawn them on
        return."""
        position, self._resume = self._resume, None
        if position is not None and self._begins(position):
            loader_kinds.restore_generators(self.loader, position.get("generators", {}))
            self._next_ids = self._next_ids_digest()
            position = None
        if position is None:
            self._restart()
            if self.kind in ("replay", "distributed"):
                self._start.opening()
            self._begin()
            return self._until_the_end(iter(self.loader))
        self._begin()
        if position.get("ranks", self._ranks) != self._ranks and self._order is None:
            self._found.append(self.ledger.unknown(self._unshared(position["ranks"])))
        self._next_ids = self._next_ids_digest()
        # Where the epoch was over when it was saved: no iterator, which would draw from torch's generator.
        iterator = iter(()) if self._is_over() else self._continue(position)
        loader_kinds.restore_generators(self.loader, position.get("generators", {}))
        return self._until_the_end(iterator)

    def _begin(self) -> None:
        self._found = self.ledger.begin(self._epoch, self._reached, ranks=self._ranks, size=self._size)

    def _continue(self, position: dict[str, Any]) -> Iterator[Any]:
        if self.kind == "resumable":
            sampler = loader_kinds.resumable_sampler(self.loader)
            assert sampler is not None
            sampler.set_epoch(self._epoch)
            sampler.start_at(self._base)
            return iter(self.loader)
        if self.kind == "stateful":
            loader_kinds.write_state(self.loader, position["loader_state"])
            return iter(self.loader)
        if self.kind == "dataset":
            loader_kinds.write_state(self.loader.dataset, position["dataset_state"])
            return iter(self.loader)
        return self._replay(position)

    def _replay(self, position: dict[str, Any]) -> Iterator[Any]:
        iterator = self._start.iterate_again(position)
        consumed = self._batches
        if self._order is not None:
            consumed = self._base // (self._ranks * loader_kinds.batch_size(self.loader))
        loader_kinds.skip(iterator, consumed)
        return iterator

    def _until_the_end(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """The iterator is let go at the end, and its workers with it."""
        self._iterator = iterator
        return self._deliver(iterator)

    def _deliver(self, iterator: Iterator[Any]) -> Iterator[Any]:
        try:
            if not self._batches:
                self._start.first_batch()
            yield from iterator
            self._over = True
            self.ledger.end(self._size)
        finally:
            self._ahead, self._iterator = self._prefetched(), None

    def delivered(self) -> None:
        self._batches += 1
        self.ledger.advance(self._reached)

    # --- arithmetic ---------------------------------------------------------------------------------------------

    @property
    def _consumed(self) -> int:
        """Samples of the whole job; the last batch of an epoch may be short."""
        assert self._order is not None
        since = (self._batches - self._base_batches) * loader_kinds.batch_size(self.loader)
        return self._base + min(since, self._order.rest(self._base)) * self._ranks

    @property
    def global_batch(self) -> int | None:
        """Samples in one batch of all ranks, without accumulation; None where ranks may not see different samples."""
        return loader_kinds.batch_size(self.loader) * self._ranks if self._order is not None else None

    @property
    def _reached(self) -> int:
        """In the ledger's unit."""
        return self._consumed if self._order is not None else self._batches

    @property
    def _size(self) -> int | None:
        return self._order.size if self._order is not None else loader_kinds.length(self.loader)

    def _is_over(self) -> bool:
        if self._order is not None:
            return self._over or loader_kinds.batches_in(self.loader, self._order.rest(self._base)) <= 0
        if loader_kinds.generators(self.loader):
            return self._over  # the end of an iteration draws from them too
        length = loader_kinds.length(self.loader)
        return self._over or (length is not None and self._batches >= length)

    def _next_ids_digest(self) -> str | None:
        """Digest of the ids of this rank's next batch, where they can be known."""
        if self._order is not None:
            ids = self._order.ids(self._epoch, self._consumed, loader_kinds.batch_size(self.loader))
            return value_digest(ids, "sha256")
        found = loader_kinds.sequential_ids(self.loader, self._batches) if self.kind == "replay" else None
        return None if found is None else value_digest(found, "sha256")

    def _prefetched(self) -> int | None:
        """What this rank's workers were asked for beyond the position, in the ledger's unit; None if nobody counts."""
        if self._iterator is None:
            return self._ahead
        size = loader_kinds.batch_size(self.loader) if self._order is not None else 1
        sampler = loader_kinds.resumable_sampler(self.loader)
        if sampler is not None:
            return max(0, sampler.drawn - (self._batches - self._base_batches) * size)
        ahead = loader_kinds.batches_ahead(self.loader, self._iterator)
        return None if ahead is None else ahead * size

    def _unshared(self, before: int) -> str:
        return (
            f"the position of a {self.kind} loader is each rank's own: on {self._ranks} instead of {before} ranks "
            "samples may come twice or never; a ResumableSampler continues exactly"
        )
