"""The data position of a tracked loader: where it is, and how to get back there.

Three kinds of loader: one over our `ResumableSampler` starts at any position; one with `state_dict` is given its state
before `iter()` (the other way round it silently starts elsewhere); any other is iterated from the state of the random
generators at the start of its epoch, and the batches already consumed are thrown away.
"""

from collections.abc import Iterator
from typing import Any

from worker_hooks.training import random_state
from worker_hooks.training.codec import decode, encode
from worker_hooks.training.data import ResumableSampler
from worker_hooks.training.digests import value_digest
from worker_hooks.training.errors import CheckpointError, CheckpointMismatch
from worker_hooks.training.sabotage import Sabotage


class Feed:
    """Batches handed to the training loop are consumed; what workers prefetched beyond is not."""

    def __init__(self, loader: Any, sabotage: Sabotage) -> None:
        self.loader = loader
        self.sampler = _sampler(loader)
        self._sabotage = sabotage
        self._epoch = 0
        self._batches = 0
        self._epoch_random: random_state.State | None = None
        self._resume: dict[str, Any] | None = None
        self._next_ids: str | None = None

    def set_epoch(self, epoch: int) -> None:
        """Also tells whatever the loader has that wants to know."""
        self._epoch = epoch
        if self._resume is None:
            self._batches = 0
        for target in (self.loader, getattr(self.loader, "sampler", None), getattr(self.loader, "batch_sampler", None)):
            tell = getattr(target, "set_epoch", None)
            if callable(tell):
                tell(epoch)

    # --- saving -------------------------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        """JSON: where the next batch comes from."""
        found: dict[str, Any] = {"epoch": self._epoch, "batches": self._batches, "epoch_length": self._length()}
        if self.sampler is not None:
            consumed = self._consumed(self._batches)
            found |= {
                "consumed": consumed,
                "sampler_seed": self.sampler.seed,
                "next_ids_digest": self._ids_digest(consumed),
            }
        elif _is_stateful(self.loader):
            found["loader_state"] = encode(self.loader.state_dict(), "loader", None)
        else:
            found["epoch_random"] = self._epoch_random
        return found

    # --- resuming -----------------------------------------------------------------------------------------------

    def resume(self, position: dict[str, Any]) -> None:
        """The next iteration continues from `position`, which counts samples where the number of ranks changed."""
        if self._place not in position:
            raise CheckpointMismatch(f"the loader is another kind than at the save: no {self._place} in its position")
        self._resume = position
        batches = position["batches"]
        if self.sampler is not None and position["consumed"] != self._consumed(batches):
            batches, rest = divmod(position["consumed"], self._batch_size() * self.sampler.replicas)
            if rest:
                raise CheckpointError(
                    f"{position['consumed']} samples were consumed, which is no whole number of batches of "
                    f"{self._batch_size()} on {self.sampler.replicas} ranks; choose another batch size"
                )
        self._epoch, self._batches = position["epoch"], self._sabotage.batches(batches)

    @property
    def resuming(self) -> bool:
        return self._resume is not None

    def actual(self) -> dict[str, Any]:
        """Where the iteration that was just opened really starts, for the verification."""
        found: dict[str, Any] = {"epoch": self._epoch, "batches": self._batches, "epoch_length": self._length()}
        if self.sampler is not None:
            found["consumed"] = self._consumed(self._batches)
            found["sampler_seed"] = self.sampler.seed
            found["next_ids_digest"] = self._next_ids
        return found

    def open(self) -> Iterator[Any]:
        """The batches from here to the end of the epoch."""
        position, self._resume = self._resume, None
        if position is None:
            self._batches = 0
            self._epoch_random = random_state.capture() if self._replays else None
            return iter(self.loader)
        length = self._length()
        if length is not None and self._batches >= length:
            # The epoch was over when it was saved: no iterator, which would draw from torch's generator.
            self._next_ids = self._ids_digest(self._consumed(self._batches)) if self.sampler is not None else None
            return iter(())
        if self.sampler is not None:
            return self._open_sampler(self.sampler)
        if _is_stateful(self.loader):
            self.loader.load_state_dict(decode(position["loader_state"], {}))
            return iter(self.loader)
        return self._replay(position)

    def delivered(self) -> None:
        self._batches += 1

    @property
    def _place(self) -> str:
        """The key that only this kind of loader's positions have."""
        if self.sampler is not None:
            return "consumed"
        return "epoch_random" if self._replays else "loader_state"

    @property
    def _replays(self) -> bool:
        return self.sampler is None and not _is_stateful(self.loader)

    def _open_sampler(self, sampler: ResumableSampler) -> Iterator[Any]:
        consumed = self._consumed(self._batches)
        sampler.set_epoch(self._epoch)
        sampler.start_at(consumed)
        self._next_ids = _digest(sampler.peek(self._batch_size()))
        return iter(self.loader)

    def _replay(self, position: dict[str, Any]) -> Iterator[Any]:
        if position["epoch_random"] is not None:
            random_state.restore(position["epoch_random"])
        self._epoch_random = position["epoch_random"]
        iterator: Iterator[Any] = iter(self.loader)
        for done in range(self._batches):
            if next(iterator, self) is self:
                raise CheckpointError(f"the loader ended after {done} batches; {self._batches} were consumed")
        return iterator

    # --- arithmetic ---------------------------------------------------------------------------------------------

    def _consumed(self, batches: int) -> int:
        """Samples of the whole job; the last batch of an epoch may be short."""
        assert self.sampler is not None
        return min(batches * self._batch_size(), len(self.sampler)) * self.sampler.replicas

    def _batch_size(self) -> int:
        size = getattr(self.loader, "batch_size", None) or getattr(self.loader.batch_sampler, "batch_size", None)
        if not isinstance(size, int):
            raise CheckpointError("a loader over a ResumableSampler needs a batch_size")
        return size

    def _ids_digest(self, consumed: int) -> str:
        """Digest of the ids of this rank's next batch."""
        assert self.sampler is not None
        return _digest(self.sampler.ids_at(self._epoch, consumed, self._batch_size()))

    def _length(self) -> int | None:
        try:
            return len(self.loader)
        except TypeError:
            return None


def _digest(ids: list[int]) -> str:
    return value_digest(ids, "sha256")


def _is_stateful(loader: Any) -> bool:
    return callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))


def _sampler(loader: Any) -> ResumableSampler | None:
    for holder in (loader, getattr(loader, "batch_sampler", None)):
        sampler = getattr(holder, "sampler", None)
        if isinstance(sampler, ResumableSampler):
            return sampler
    return None
