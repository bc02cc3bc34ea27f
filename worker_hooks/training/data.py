"""A shuffled, distributed sampler whose position is one number: the samples that the whole job has consumed.

The order of an epoch depends on (seed, epoch) alone. Rank r of W takes every W-th sample, so a global batch is a
contiguous stretch of the epoch's order however many ranks share it. Nothing is padded: the tail that would give ranks
different counts is left out of that epoch (another tail each epoch).
"""

import hashlib
from collections.abc import Iterator, Sized

import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class ResumableSampler(Sampler[int]):  # type: ignore[misc]
    """Give it to a plain `torch.utils.data.DataLoader(sampler=…)`; `Run` drives epoch and position.

    `num_replicas` and `rank` default to the process group's.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        seed: int = 0,
        shuffle: bool = True,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.replicas = num_replicas if num_replicas is not None else (dist.get_world_size() if joined else 1)
        self.rank = rank if rank is not None else (dist.get_rank() if joined else 0)
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        self._size = len(dataset)
        self._start = 0
        if not 0 <= self.rank < self.replicas:
            raise ValueError(f"rank {self.rank} is outside 0 to {self.replicas - 1}")
        if len(self) == 0:
            raise ValueError(f"{self._size} samples cannot be shared by {self.replicas} ranks")

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch, wherever the next iteration starts."""
        return self._size // self.replicas

    def set_epoch(self, epoch: int) -> None:
        """The next iteration gives `epoch` from its beginning."""
        self.epoch = epoch
        self._start = 0

    def start_at(self, consumed: int) -> None:
        """The next iteration, and only that one, starts after `consumed` samples of the whole job in this epoch."""
        if consumed < 0 or consumed % self.replicas:
            raise ValueError(f"position {consumed} is not a multiple of {self.replicas} ranks")
        self._start = consumed // self.replicas

    def peek(self, count: int) -> list[int]:
        """The first `count` ids of the next iteration, without starting it."""
        ids: list[int] = self._ids(self.epoch, self._start)[:count].tolist()
        return ids

    def ids_at(self, epoch: int, consumed: int, count: int) -> list[int]:
        """This rank's `count` ids after `consumed` samples of the whole job in `epoch`. Changes nothing."""
        ids: list[int] = self._ids(epoch, consumed // self.replicas)[:count].tolist()
        return ids

    def __iter__(self) -> Iterator[int]:
        ids, self._start = self._ids(self.epoch, self._start), 0
        return iter(ids.tolist())

    def _ids(self, epoch: int, start: int) -> torch.Tensor:
        return self._order(epoch)[self.rank : len(self) * self.replicas : self.replicas][start:]

    def _order(self, epoch: int) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(self._size)
        generator = torch.Generator()  # its own: the global generator belongs to the training script
        mixed = hashlib.sha256(f"{self.seed}:{epoch}".encode()).digest()
        generator.manual_seed(int.from_bytes(mixed[:8], "little") >> 1)
        return torch.randperm(self._size, generator=generator)
