"""What is known of the order of samples in a loader that `accelerate` prepared.

`accelerate` deals whole batches to the ranks in turn and, by default, repeats samples of the epoch's beginning at its
end, so that every rank gets full batches: the ledger counts them as padded. It also loads one batch ahead.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import SequentialSampler


class PreparedLoader:
    """A loader of `accelerate` as the run may track it. Its own state, which counts the batch ahead, stays out."""

    loads_ahead = 1

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.known_order = _order(loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name in ("state_dict", "load_state_dict", "_loader"):
            raise AttributeError(name)
        return getattr(self._loader, name)


def tracked_form(loader: Any) -> Any:
    """A loader that was not prepared is what it is."""
    return PreparedLoader(loader) if hasattr(loader, "base_dataloader") else loader


def _order(loader: Any) -> "DealtOrder | None":
    """None where the order depends on more than seed and epoch, or ranks get batches of different sizes."""
    batches: Any = getattr(loader, "batch_sampler", None)
    whole: Any = getattr(batches, "batch_sampler", batches)
    sampler: Any = getattr(whole, "sampler", None)
    ranks = getattr(batches, "num_processes", 1)
    seeded = type(sampler).__name__ == "SeedableRandomSampler" and not sampler.replacement
    if not isinstance(getattr(whole, "batch_size", None), int) or not (seeded or type(sampler) is SequentialSampler):
        return None
    if type(loader).__name__ == "DataLoaderDispatcher" or getattr(batches, "split_batches", False):
        return None
    uneven = ranks > 1 and not whole.drop_last and not batches.even_batches
    return None if uneven else DealtOrder(batches, sampler, ranks, whole.batch_size)


class DealtOrder:
    """An epoch's order, dealt to `ranks` in whole batches (`loader_kinds.Order`)."""

    def __init__(self, batches: Any, sampler: Any, ranks: int, batch_size: int) -> None:
        self.ranks = ranks
        self.size = len(sampler)
        self.seed = int(getattr(sampler, "initial_seed", 0))
        self._batches = batches
        self._sampler = sampler
        self._batch_size = batch_size

    def rest(self, consumed: int) -> int:
        """On several ranks every batch is full."""
        whole = self.size if self.ranks == 1 else len(self._batches) * self._batch_size
        return whole - consumed // self.ranks

    def ids(self, epoch: int, consumed: int, count: int) -> list[int]:
        """Of this rank's next batch. The sampler's generator is put back as it was."""
        before, generator = getattr(self._sampler, "epoch", None), getattr(self._sampler, "generator", None)
        state = generator.get_state() if isinstance(generator, torch.Generator) else None
        if before is not None:
            self._sampler.epoch = epoch
        dealt = consumed // (self.ranks * self._batch_size)
        found: list[Any] = next(islice(iter(self._batches), dealt, None), [])
        if before is not None:
            self._sampler.epoch, self._sampler.generator = before, generator
        if state is not None:
            generator.set_state(state)  # type: ignore[union-attr]
        return [int(index) for index in found[:count]]
