"""The token of this attempt (theory: `protocol.generations`): taken where no agent took it, and lost to another."""

import time
from pathlib import Path

from worker_hooks.protocol import generations, minting
from worker_hooks.protocol.generations import NotNewest
from worker_hooks.training.comms import Coordinator
from worker_hooks.training.errors import Superseded
from worker_hooks.training.saving.save import superseded


def take(run: Path, node: str, coordinator: Coordinator) -> int:
    """The next generation, which rank 0 takes for everybody. Collective."""
    made = 0
    if coordinator.rank == 0:
        world_size = coordinator.world_size
        made = minting.mint(run, node=node, nodes=(node,), world_size=world_size, now=time.time()).generation
    number: int = coordinator.broadcast(made)
    return number


def lost(run: Path, generation: int) -> Superseded | None:
    """Whether another attempt took over meanwhile: the reason behind many an error of the ranks' communication."""
    try:
        generations.check_token(run, generation)
    except NotNewest as error:
        return superseded(error)
    except OSError:
        pass
    return None
