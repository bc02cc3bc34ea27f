"""The data position of a tracked loader: where it is, how to get back there, and what that did to the samples.

`loader_kinds` tells the kinds of loader apart. Where the place of each sample in the epoch is known (`resumable`,
`distributed`) the position counts samples of the whole job, otherwise batches of this rank.
"""

import sys
from collections.abc import Iterator
from typing import Any

from worker_hooks.training.data import loader_kinds, orders, sample_random
from worker_hooks.training.data.accounting import Account
from worker_hooks.training.data.epoch_start import EpochStart
from worker_hooks.training.data.ledger import REPEATED, SKIPPED, Entry, Ledger, alarms, is_sound
from worker_hooks.training.data.place import Place
from worker_hooks.training.errors import CheckpointMismatch
from worker_hooks.training.sabotage import Sabotage

# name, outcome, expected, actual, and for a known mistake its code and why
Check = tuple[str, str, Any, Any] | tuple[str, str, Any, Any, str, str]


class Feed:
    """Batches handed to the training loop are consumed; what workers prefetched beyond is not."""

    def __init__(self, loader: Any, sabotage: Sabotage) -> None:
        self.loader = loader
        self.place = Place(loader)
        self.kind = self.place.kind
        self.ledger = Ledger("samples" if self.place.order is not None else "batches")
        self.account = Account()
        self._sabotage = sabotage
        self._start = EpochStart(loader)
        self._resume: dict[str, Any] | None = None
        self._iterator: Iterator[Any] | None = None
        self._ahead: int | None = 0
        self._next_ids: str | None = None
        self._found: list[Entry] = []
        self._whole: int | None = None  # batches of the epoch in which this attempt began
        self._before: dict[str, Any] = {}  # the position that was loaded
        self._accumulations = (1, 1)  # batches of an update: at the save, now

    def set_epoch(self, epoch: int) -> None:
        """Also tells whatever the loader has that wants to know."""
        if self._resume is not None and epoch != self._resume["epoch"]:  # the rest of that epoch was never asked for
            loader_kinds.restore_generators(self.loader, self._resume.get("generators", {}))
            self._resume = None
        if self._resume is None:
            self._restart()
        self.place.epoch = epoch
        sample_random.tell_epoch(self.loader, epoch)

    def _restart(self) -> None:
        self.account.turn(self.place.batches)
        self.place.restart()

    # --- saving -------------------------------------------------------------------------------------------------

    def position(self, pending: int = 0) -> dict[str, Any]:
        """JSON: where the next batch comes from. What was loaded and not used yet is where it was.

        `pending`: the last so many batches are in no update yet. Their gradients are not saved, so they come again,
        where this process can go back: not with a state of somebody else's, and not over the end of an epoch.
        """
        if self._resume is not None:
            return self._resume
        fixed = self.place.over or self.kind in ("stateful", "dataset")
        place = self.place if fixed else self.place.back(pending)
        reached = place.reached if place.batches < self.place.batches else None
        found = {
            "kind": self.kind,
            "ranks": place.ranks,
            "num_workers": getattr(self.loader, "num_workers", None),
            "batch_size": loader_kinds.size_of_batch(self.loader),
            **place.where(place.next_ids_digest()),
            "over": place.over,
            "open": self._iterator is not None,
            "global_batch": place.global_batch,
            "prefetched": self._prefetched(),
            "generators": loader_kinds.capture_generators(self.loader),
            "ledger": self.ledger.record(reached),
            "account": self.account.record(),
        }
        if self.kind == "stateful":
            found["loader_state"] = loader_kinds.read_state(self.loader)
        elif self.kind == "dataset":
            found["dataset_state"] = loader_kinds.read_state(self.loader.dataset)
        elif self.kind != "resumable":
            found |= self._start.record()
        return found

    # --- resuming -----------------------------------------------------------------------------------------------

    def resume(self, position: dict[str, Any]) -> None:
        """The next iteration continues from `position`, on whatever number of ranks it was saved."""
        saved = loader_kinds.kind_at_the_save(position)
        if not loader_kinds.same_kind(saved, self.kind):
            raise CheckpointMismatch(f"the loader is another kind than at the save: {saved} then, {self.kind} now")
        if position.get("ranks", self.place.ranks) == self.place.ranks or self.kind == "stateful":
            loader_kinds.demand_same_batches(self.loader, position, self.kind)
        self._resume = self._before = position
        self.place.move_to(position, self._sabotage.batches(position["batches"]))
        self.account.take_up(position.get("account"), position["epoch"])
        self._read_ledger(position)

    def _read_ledger(self, position: dict[str, Any]) -> None:
        unit = self.ledger.unit
        if position.get("ledger", {}).get("unit") == unit:
            self.ledger = Ledger.read(position["ledger"])
        else:  # from before there was one
            self.ledger.begin(self.place.epoch, 0, ranks=position.get("ranks", self.place.ranks), size=None)
            self.ledger.advance(self.place.reached_at(position))
        self.ledger.discard(position.get("prefetched") or 0, position.get("ranks", self.place.ranks))

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
        return self.place.where(self._next_ids)

    def checks(self) -> list[Check]:
        """For the verification: (name, outcome, expected, actual) of the samples and of their random numbers."""
        names, wrong = alarms(self._found), [entry.text(self.ledger.unit) for entry in self._found]
        said = ("data_ledger", "PASS" if is_sound(self._found) else "DEGRADED", None)
        told = "; ".join([*names, *wrong, self.ledger.text()])
        found: list[Check] = [(*said, told, " ".join(names), "; ".join(wrong)) if names else (*said, told)]
        before, now = (
            batch and batch * updates
            for batch, updates in zip(
                (self._before.get("global_batch"), self.place.global_batch), self._accumulations, strict=True
            )
        )
        if before not in (None, now):
            found.append(("global_batch", "DEGRADED", before, now))
        doubt = sample_random.doubt(self.loader)
        return [*found, *([("sample_random", "DEGRADED", None, doubt)] if doubt else [])]

    def accounted(self, step: int, accumulation: int) -> list[Check]:
        """The place against `step` updates of `accumulation` batches each, as large as they were at the save. Nothing
        to say where an epoch was not trained in order."""
        if self.ledger.totals[REPEATED] or self.ledger.totals[SKIPPED]:
            return []
        saved, batch = self.account.as_it_was(self._before.get("account")), self._before.get("global_batch")
        unit = "samples" if batch else "batches"
        found = saved.check(step, self.place.batches, together=batch or 1, accumulation=accumulation, unit=unit)
        return [] if found is None else [found]

    @property
    def global_batch(self) -> int | None:
        return self.place.global_batch

    @property
    def moved(self) -> bool:
        """Onto another number of ranks than at the save."""
        return bool(self._before.get("ranks", self.place.ranks) != self.place.ranks)

    def updates_of(self, before: int, now: int, step: int) -> bool:
        """`before` batches made an update at the save, `now` do from `step` on. Is it as large as it was?"""
        if not self._before:
            self.account.earlier = None  # it was not tracked then
        saved = self._before.get("global_batch")
        same = before == now and saved == self.place.global_batch and not self.moved
        self._accumulations = (before, now)
        if not same:
            self.account.begin_anew(step, self.place.batches, saved or 1)
        return same

    def open(self) -> Iterator[Any]:
        """The batches from here to the end of the epoch. What draws random numbers at the start has drawn them on
        return."""
        position, self._resume = self._resume, None
        if position is not None and self._begins(position):
            loader_kinds.restore_generators(self.loader, position.get("generators", {}))
            self.place.drawn = None
            self._next_ids = self.place.next_ids_digest()
            position = None
        if position is None:
            return self._until_the_end(self._anew())
        self._begin()
        if position.get("ranks", self.place.ranks) != self.place.ranks and self.place.order is None:
            self._found.append(
                self.ledger.unknown(loader_kinds.unshared(self.kind, position["ranks"], self.place.ranks))
            )
        self._next_ids = self.place.next_ids_digest()
        # Where the epoch was over when it was saved: no iterator, which would draw from torch's generator.
        iterator = iter(()) if self.place.is_over() else self._continue(position)
        loader_kinds.restore_generators(self.loader, position.get("generators", {}))
        return self._until_the_end(iterator)

    def _anew(self) -> Iterator[Any]:
        """A whole epoch. A loop that tells nobody its epochs has several under one number."""
        if self.place.over:
            self.ledger.close(self.place.size)
        self._restart()
        self.place.drawn = orders.drawn_epoch(self.loader)
        if self.kind in ("replay", "distributed"):
            self._start.opening()
        self._begin()
        return iter(self.loader)

    def _begin(self) -> None:
        self._found = self.ledger.begin(
            self.place.epoch, self.place.reached, ranks=self.place.ranks, size=self.place.size
        )

    def _continue(self, position: dict[str, Any]) -> Iterator[Any]:
        orders.draw_for(self.loader, self.place.drawn)
        if self.kind == "resumable":
            sampler = orders.resumable_sampler(self.loader)
            assert sampler is not None
            sampler.set_epoch(self.place.order_epoch)
            sampler.start_at(self.place.base)
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
        consumed = self.place.batches
        if self.place.order is not None:
            consumed = self.place.base // (self.place.ranks * loader_kinds.batch_size(self.loader))
        loader_kinds.skip(iterator, consumed)
        return iterator

    def _until_the_end(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """The iterator is let go at the end, and its workers with it."""
        self._iterator = iterator
        return self._deliver(iterator)

    def _deliver(self, iterator: Iterator[Any]) -> Iterator[Any]:
        try:
            if not self.place.batches:
                self._start.first_batch()
            yield from iterator
            self._end()
        finally:
            self._ahead, self._iterator = self._prefetched(), None

    def _end(self) -> None:
        """Looks for R08 as well: what was moved on for the resume, and moves on again in a later epoch."""
        place, began = self.place, self._before.get("batches", 0) if self.place.order is None else 0
        place.over = True
        if place.base_batches:
            self._whole = place.batches
        elif began and self._whole is not None and self._whole - place.batches == began:
            entry = self.ledger.began_at(began)
            print(f"relume: SAMPLES_SKIPPED: {entry.text(self.ledger.unit)}, as at the resume", file=sys.stderr)
        self.ledger.end(place.size)

    def delivered(self) -> None:
        self.place.batches += 1
        self.ledger.advance(self.place.reached)

    def _prefetched(self) -> int | None:
        """What this rank's workers were asked for beyond the position, in the ledger's unit; None if nobody counts."""
        if self._iterator is None:
            return self._ahead
        size = loader_kinds.batch_size(self.loader) if self.place.order is not None else 1
        sampler = orders.resumable_sampler(self.loader)
        if sampler is not None:
            return max(0, sampler.drawn - (self.place.batches - self.place.base_batches) * size)
        ahead = loader_kinds.batches_ahead(self.loader, self._iterator)
        return None if ahead is None else ahead * size
