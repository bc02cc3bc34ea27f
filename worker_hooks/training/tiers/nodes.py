"""Which rank runs on which node: asked once, at the start."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from worker_hooks.training.comms import Coordinator


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """As Slurm calls this node; outside Slurm the host's own name."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


@dataclass(frozen=True)
class Nodes:
    """`names`: the node of each rank."""

    names: tuple[str, ...]

    @classmethod
    def gather(cls, coordinator: Coordinator, name: str) -> "Nodes":
        """Collective."""
        return cls(tuple(coordinator.gather(name)))

    @property
    def order(self) -> tuple[str, ...]:
        """The nodes by their first rank."""
        return tuple(dict.fromkeys(self.names))

    def ranks(self, node: str) -> tuple[int, ...]:
        return tuple(rank for rank, name in enumerate(self.names) if name == node)

    def first(self, rank: int) -> bool:
        """Whether `rank` is the first on its node: it speaks for the node's folder."""
        return self.ranks(self.names[rank])[0] == rank

    def partner(self, rank: int) -> int | None:
        """The rank that keeps a copy for `rank`: at the same place on the next node. None on a single node."""
        order = self.order
        if len(order) < 2:
            return None
        mine = self.names[rank]
        there = self.ranks(order[(order.index(mine) + 1) % len(order)])
        return there[self.ranks(mine).index(rank) % len(there)]
