"""The order of an epoch: whose sampler draws it, for which epoch, and which samples come next where that is known."""

from itertools import islice
from typing import Any, Protocol

from torch.utils.data import BatchSampler, DistributedSampler

from worker_hooks.training.data.sampler import ResumableSampler


class Order(Protocol):
    """A loader's epoch whose samples are known by their place. `size`: samples that are not padding."""

    ranks: int
    size: int
    seed: int

    def rest(self, consumed: int) -> int:
        """Samples that each rank still gets in this epoch."""

    def ids(self, epoch: int, consumed: int, count: int) -> list[int]:
        """This rank's next ids. Changes nothing."""


class ResumableOrder:
    def __init__(self, sampler: ResumableSampler) -> None:
        self.sampler = sampler
        self.ranks, self.size, self.seed = sampler.replicas, sampler.size, sampler.seed

    def rest(self, consumed: int) -> int:
        return (self.size - consumed) // self.ranks

    def ids(self, epoch: int, consumed: int, count: int) -> list[int]:
        return self.sampler.ids_at(epoch, consumed, count)


class DistributedOrder:
    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.ranks, self.size, self.seed = sampler.num_replicas, len(sampler.dataset), sampler.seed

    def rest(self, consumed: int) -> int:
        rest: int = self._sampler.num_samples - consumed // self.ranks
        return rest

    def ids(self, epoch: int, consumed: int, count: int) -> list[int]:
        """It draws from a generator of its own, so that it may be asked at any time."""
        before, self._sampler.epoch = self._sampler.epoch, epoch
        start = consumed // self.ranks
        found = [int(index) for index in islice(iter(self._sampler), start, start + count)]
        self._sampler.epoch = before
        return found


def sampler_of(loader: Any) -> Any:
    for holder in (loader, getattr(loader, "batch_sampler", None)):
        sampler = getattr(holder, "sampler", None)
        if isinstance(sampler, ResumableSampler | DistributedSampler):
            return sampler
    return getattr(loader, "sampler", None)


def resumable_sampler(loader: Any) -> ResumableSampler | None:
    sampler = sampler_of(loader)
    return sampler if isinstance(sampler, ResumableSampler) and _batches_in_order(loader) else None


def distributed_sampler(loader: Any) -> Any:
    """Torch's own class only: a subclass may order otherwise."""
    sampler = sampler_of(loader)
    return sampler if type(sampler) is DistributedSampler and _batches_in_order(loader) else None


def _batches_in_order(loader: Any) -> bool:
    """A batch sampler of somebody else's may sort, mix or drop what the sampler gives."""
    return type(getattr(loader, "batch_sampler", None)) in (BatchSampler, type(None))


def tellable(loader: Any) -> list[Any]:
    """What may want to know the epoch, besides the dataset."""
    batches = getattr(loader, "batch_sampler", None)
    return [loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)]


def drawn_epoch(loader: Any) -> int | None:
    """The epoch that the next iteration's order is drawn for, whoever said so; None where no sampler has one."""
    holder = None if hasattr(loader, "known_order") else _holder(loader)
    return None if holder is None else int(holder.epoch)


def draw_for(loader: Any, epoch: int | None) -> None:
    """The next iteration's order is that of `epoch`."""
    holder = _holder(loader)
    if holder is None or epoch is None:
        return
    holder.set_epoch(epoch)
    if holder.epoch != epoch:  # it makes something of what it is told
        holder.epoch = epoch


def _holder(loader: Any) -> Any:
    for found in tellable(loader)[1:]:
        epoch = getattr(found, "epoch", None)
        if isinstance(epoch, int) and not isinstance(epoch, bool) and callable(getattr(found, "set_epoch", None)):
            return found
    return None
