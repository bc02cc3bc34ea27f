"""Whether a save that falls due is taken: by all ranks or by none, without a collective.

Ranks finish writing at different moments. If each decided alone, one would skip a save that another takes, and its
folder would stay incomplete for ever. So the first rank to arrive at a step decides for all, by a compare-and-set in
the store that the ranks met at: yes if every rank has told that its last save is over. Nobody waits for anybody.
"""

from collections.abc import Callable, Mapping

import torch.distributed as dist

from worker_hooks.protocol.tiers import Tier
from worker_hooks.training.occasions.boards import StoreBoard


class SharedTurns(StoreBoard):
    """On the ranks' store. Its errors are OSError or RuntimeError."""

    @classmethod
    def of_ranks(cls, world_size: int, generation: int) -> "SharedTurns | None":
        """None for one rank, which needs nobody's consent."""
        if world_size == 1:
            return None
        return cls(dist.distributed_c10d._get_default_store(), f"relume-turns-g{generation}")

    def claim(self, key: str, value: str) -> str:
        """The value of `key`: this one if nobody set another before."""
        word: bytes = self._store.compare_set(key, "", value)
        return word.decode()


class Turns:
    """One rank's view. `board` is None where there is one rank; `idle` tells whether this rank writes nothing now."""

    def __init__(self, world_size: int, board: SharedTurns | None, idle: Callable[[], bool]) -> None:
        self._world_size = world_size
        self._board = board
        self._idle = idle
        self._last: int | None = None
        self._asked: tuple[int, int] = (-1, 0)  # the step asked for last, and how often before
        self._failed: dict[tuple[int, Tier], str] = {}

    def begin(self, step: int) -> bool:
        """The same answer on every rank. A store that does not answer is a no: without this rank the folder never
        counts. A step that was left out may be asked for again: at the end of a run it is its last state."""
        self._asked = (step, self._asked[1] + 1 if self._asked[0] == step else 0)
        if self._board is None:
            taken = self._idle()
        else:
            try:
                taken = self._board.claim(f"save/{step}/{self._asked[1]}", "yes" if self.over() else "no") == "yes"
            except (OSError, RuntimeError):
                taken = False
        if taken:
            self._last = step
        return taken

    def over(self) -> bool:
        """Every rank has finished its part of the last save, well or not."""
        if self._board is None or self._last is None:
            return self._idle()
        return int(self._board.read(f"done/{self._last}") or 0) == self._world_size

    def done(self, step: int, failures: Mapping[Tier, str]) -> None:
        """This rank's part of that save is over, on every tier."""
        for tier, failure in failures.items():
            self._failed[step, tier] = failure
            if self._board is not None:
                self._board.write(f"failure/{tier}/{step}", failure)
        if self._board is not None:
            self._board.add(f"done/{step}", 1)

    def failure(self, step: int, tier: Tier) -> str | None:
        """What some rank said went wrong with that save on that tier, once no rank writes to it any more."""
        if self._board is None:
            return self._failed.get((step, tier))
        try:
            if int(self._board.read(f"done/{step}") or 0) < self._world_size:
                return None
            return self._failed.get((step, tier)) or self._board.read(f"failure/{tier}/{step}")
        except (OSError, RuntimeError):
            return None

    def own_failure(self, step: int, tier: Tier) -> str | None:
        """What went wrong with this rank's own part: known also when the other ranks, and their store, are gone."""
        return self._failed.get((step, tier))
