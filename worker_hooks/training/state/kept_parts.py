"""What was collected, kept to be collected again cheaply: where each tensor lies is known, its numbers are today's.

A tensor is detached anew each time, so that one whose memory, type or size was changed under it is what it is now.
"""

from collections.abc import Mapping
from operator import call, methodcaller
from typing import Any
from weakref import ref

import torch
from torch import nn

from worker_hooks.training.state import ddp
from worker_hooks.training.state.optimizer_state import OptimizerState
from worker_hooks.training.state.structure import ModuleTree, OptimizerTree, references

Tensors = dict[str, torch.Tensor]
Piece = tuple[str, torch.Tensor, bool]  # path, the tensor itself, whether it is shared by all ranks
_DETACH = methodcaller("detach")


class KeptPieces:
    """Tensors by path and home, held weakly."""

    def __init__(self, pieces: list[Piece]) -> None:
        homes = [[piece for piece in pieces if piece[2] == shared] for shared in (True, False)]
        self._kept = [([path for path, _, _ in home], references(tensor for _, tensor, _ in home)) for home in homes]

    def put(self, shared: Tensors, own: Tensors) -> None:
        """What each is now, detached."""
        for home, (paths, tensors) in zip((shared, own), self._kept, strict=True):
            home.update(zip(paths, map(_DETACH, map(call, tensors)), strict=True))


class KeptModels:
    """The tracked models of one call of `Tracked.collect`; `pieces` and `from_rank_zero` as they were found."""

    def __init__(
        self, models: Mapping[str, nn.Module], pieces: list[Piece], from_rank_zero: set[str], world_size: int
    ) -> None:
        self.from_rank_zero = from_rank_zero
        self._world_size = world_size
        self._trees = {name: (ref(model), ModuleTree(model)) for name, model in models.items()}
        # DDP's choice to take buffers from rank 0 may be changed while it runs.
        replicas = ddp.replicas(dict(models)).values()
        self._replicas = [(ref(replica), ddp.broadcasts_buffers(replica)) for replica in replicas]
        self._pieces = KeptPieces(pieces)

    def holds(self, models: Mapping[str, nn.Module], world_size: int) -> bool:
        """Every tensor is where it was."""
        if world_size != self._world_size or list(models) != list(self._trees):
            return False
        for of, broadcasts in self._replicas:
            replica = of()
            if replica is None or ddp.broadcasts_buffers(replica) != broadcasts:
                return False
        return all(model is self._trees[name][0]() and self._trees[name][1].same() for name, model in models.items())

    def put(self, shared: Tensors, own: Tensors) -> None:
        """Only where `holds`."""
        self._pieces.put(shared, own)


class KeptOptimizer:
    """One optimizer: worth asking only where the models hold, whose tensors decide what is shared."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, state: OptimizerState, values: dict[str, Any], pieces: list[Piece]
    ) -> None:
        self._optimizer = ref(optimizer)
        self._tree = OptimizerTree(optimizer)
        self._state = state
        self._described = values["state"]
        self._pieces = KeptPieces(pieces)

    def holds(self, optimizer: torch.optim.Optimizer) -> bool:
        return optimizer is self._optimizer() and self._tree.same(optimizer)

    def values(self) -> dict[str, Any]:
        """JSON: the settings as they are now, what the state is like as it was. Only where `holds`."""
        return self._state.values(self._described)

    def put(self, shared: Tensors, own: Tensors) -> None:
        """Only where `holds`."""
        self._pieces.put(shared, own)
