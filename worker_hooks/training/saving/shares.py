"""Which rank writes what: decided before anything is staged, by a rule that every rank applies alone.

The same rule on the same keys, shapes and types gives every rank the same deal, so nobody has to ask, and a deal is
good until one of them changes: a save after the first plans nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import create_default_local_save_plan
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from worker_hooks.training.errors import CheckpointError
from worker_hooks.training.state import names
from worker_hooks.training.state.codec import Tensors
from worker_hooks.training.state.tracked import Parts


@dataclass(frozen=True)
class Chunk:
    """A part of a tensor that this rank writes: DCP's item for it, what the whole is like, and its length."""

    item: WriteItem
    dtype: torch.dtype
    bytes: int

    @property
    def key(self) -> str:
        key: str = self.item.index.fqn
        return key

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(self.item.tensor_data.chunk.offsets)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.item.tensor_data.chunk.sizes)

    @property
    def place(self) -> tuple[str, tuple[int, ...]]:
        """What it is called from save to save."""
        return self.key, self.offsets


@dataclass(frozen=True)
class Share:
    """One rank's deal. `chunks` and `plan.items` are in the order of `keys`."""

    keys: tuple[str, ...]
    chunks: tuple[Chunk, ...]
    plan: SavePlan

    @property
    def bytes(self) -> int:
        return sum(chunk.bytes for chunk in self.chunks)

    def tensors(self, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """This rank's own memory of each chunk, as it is: on its device, perhaps strided. No copy, but of
        a conjugated view."""
        return [_local(tensors[key]) for key in self.keys]


class Dealer:
    """Deals again only when a key, a shape or a type is another one than at the last deal."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._signature: Any = None
        self._share: Share | None = None

    def deal(self, parts: Parts) -> tuple[Share, Tensors]:
        """The share, and this save's tensors by the share's keys."""
        signature = [
            [(key, tensor.shape, tensor.dtype) for key, tensor in home.items()] for home in (parts.shared, parts.own)
        ]
        own = {own_key(self._rank, key): value for key, value in parts.own.items()}
        if self._share is None or signature != self._signature:
            mine = my_share(parts, self._rank, self._world_size)
            self._share, self._signature = plan_share(mine), signature
        return self._share, parts.shared | own


def plan_share(tensors: Mapping[str, torch.Tensor]) -> Share:
    """DCP plans each tensor's place in the whole; a shard keeps its offsets."""
    plan = create_default_local_save_plan(dict(tensors), is_coordinator=True)
    keys, chunks = [], []
    for item in plan.items:
        key = item.index.fqn
        if item.tensor_data is None:
            raise CheckpointError(f"{key}: only tensors are stored as shards")
        count = item.tensor_data.chunk.sizes.numel()
        dtype = item.tensor_data.properties.dtype
        if _local(tensors[key]).numel() != count:
            raise CheckpointError(f"{key}: a tensor of several local shards cannot be stored")
        keys.append(key)
        chunks.append(Chunk(item, dtype, count * dtype.itemsize))
    return Share(tuple(keys), tuple(chunks), plan)


def my_share(parts: Parts, rank: int, world_size: int) -> Tensors:
    """What this rank writes: shared tensors dealt out by size, its shards, and its own under a key of its own.

    Buffers that DDP broadcasts differ by rank until the next forward: rank 0's are the ones that count.
    """
    loads = [0] * world_size
    share: Tensors = {}
    sharded = {key: value for key, value in parts.shared.items() if names.is_sharded(value)}
    plain = {key: value for key, value in parts.shared.items() if key not in sharded}
    sizes = {key: value.numel() * value.element_size() for key, value in plain.items()}
    for key in sorted(plain, key=lambda key: (-sizes[key], key)):
        taker = 0 if key in parts.from_rank_zero else loads.index(min(loads))
        loads[taker] += sizes[key]
        if taker == rank:
            share[key] = plain[key]
    own = {own_key(rank, key): value for key, value in parts.own.items()}
    return share | {key: value for key, value in sharded.items() if _writes(value)} | own


def own_key(rank: int, key: str) -> str:
    return f"rank-{rank:05d}:{key}"


def _local(tensor: torch.Tensor) -> torch.Tensor:
    if type(tensor) is torch.Tensor and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg()):
        return tensor  # as nearly all are, and training waits
    to_local = getattr(tensor, "to_local", None)
    local: torch.Tensor = (to_local() if to_local is not None else tensor).detach()
    return local.resolve_conj().resolve_neg()


def _writes(tensor: Any) -> bool:
    """Of several ranks that hold the same shard (a mesh that also replicates) the first one writes it."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return False
    return all(place == 0 for place, how in zip(coordinate, tensor.placements, strict=True) if how.is_replicate())
