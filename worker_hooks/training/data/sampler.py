"""A shuffled, distributed sampler whose position is one number: the samples that the whole job has consumed.

The order of an epoch depends on (seed, epoch) alone. From a position on, rank r of W takes every W-th sample, so a
global batch is a contiguous stretch of the epoch's order however many ranks share it, and any number of ranks can go on
where any other number stopped. Nothing is padded: the tail that would give ranks different counts is left out of that
epoch (another tail each epoch).
"""

import hashlib
from collections.abc import Iterator, Sized

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

_PIECE = 4096


class ResumableSampler(Sampler[int]):  # type: ignore[misc]
    """Give it to a plain `torch.utils.data.DataLoader(sampler=…)`; `Run` drives epoch and position.

    `num_replicas` and `rank` default to the process group's. `drawn`: ids that the running iteration has handed out, to
    workers that load ahead too.
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
        self.size = len(dataset)
        self.drawn = 0
        self._start = 0
        self._known: tuple[int, int, torch.Tensor] | None = None
        if not 0 <= self.rank < self.replicas:
            raise ValueError(f"rank {self.rank} is outside 0 to {self.replicas - 1}")
        if len(self) == 0:
            raise ValueError(f"{self.size} samples cannot be shared by {self.replicas} ranks")

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch, wherever the next iteration starts."""
        return self.size // self.replicas

    def set_epoch(self, epoch: int) -> None:
        """The next iteration gives `epoch` from its beginning."""
        self.epoch = epoch
        self._start = 0

    def start_at(self, consumed: int) -> None:
        """The next iteration, and only that one, starts after `consumed` samples of the whole job in this epoch."""
        if not 0 <= consumed <= self.size:
            raise ValueError(f"position {consumed} is outside an epoch of {self.size} samples")
        self._start = consumed

    def peek(self, count: int) -> list[int]:
        """The first `count` ids of the next iteration, without starting it."""
        return self.ids_at(self.epoch, self._start, count)

    def ids_at(self, epoch: int, consumed: int, count: int) -> list[int]:
        """This rank's `count` ids after `consumed` samples of the whole job in `epoch`. Changes nothing."""
        ids: list[int] = self._share(epoch, consumed)[:count].tolist()
        return ids

    def __iter__(self) -> Iterator[int]:
        share, self._start, self.drawn = self._share(self.epoch, self._start), 0, 0
        return self._draw(share)

    def _draw(self, share: torch.Tensor) -> Iterator[int]:
        for piece in share.split(_PIECE):
            for index in piece.tolist():
                self.drawn += 1
                yield index

    def _share(self, epoch: int, consumed: int) -> torch.Tensor:
        """This rank's ids from there to the epoch's end. Kept, because every save asks for the next few of them."""
        if self._known is not None:
            known_epoch, start, share = self._known
            if epoch == known_epoch and consumed >= start and (consumed - start) % self.replicas == 0:
                return share[(consumed - start) // self.replicas :]
        end = self.size - (self.size - consumed) % self.replicas
        share = self._order(epoch)[consumed + self.rank : end : self.replicas].clone()
        self._known = (epoch, consumed, share)
        return share

    def _order(self, epoch: int) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(self.size)
        generator = torch.Generator()  # its own: the global generator belongs to the training script
        mixed = hashlib.sha256(f"{self.seed}:{epoch}".encode()).digest()
        generator.manual_seed(int.from_bytes(mixed[:8], "little") >> 1)
        return torch.randperm(self.size, generator=generator)
