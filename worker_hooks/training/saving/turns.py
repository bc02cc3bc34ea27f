"""Whether a save that falls due is taken: by all ranks or by none, without a collective.

Ranks finish writing at different moments. If each decided alone, one would skip a save that another takes, and its
folder would stay incomplete for ever. So the first rank to arrive at a step decides for all, by a compare-and-set in
the store that the ranks met at: yes if every rank has told that its last save is over. Nobody waits for anybody.
"""

from collections.abc import Callable

from worker_hooks.training.occasions.boards import StoreBoard


class SharedTurns(StoreBoard):
    """On the ranks' store. Its errors are OSError or RuntimeError."""

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
        self._failed: dict[int, str] = {}

    def begin(self, step: int) -> bool:
        """The same answer on every rank. A store that does not answer is a no: without this rank the folder never
        counts."""
        if self._board is None:
            taken = self._idle()
        else:
            try:
                taken = self._board.claim(f"save/{step}", "yes" if self.over() else "no") == "yes"
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

    def done(self, step: int, failure: str | None) -> None:
        """This rank's part of that save is over."""
        if failure is not None:
            self._failed[step] = failure
        if self._board is not None:
            if failure is not None:
                self._board.write(f"failure/{step}", failure)
            self._board.add(f"done/{step}", 1)

    def failure(self, step: int) -> str | None:
        """What some rank said went wrong with that save, once no rank writes to it any more."""
        if self._board is None:
            return self._failed.get(step)
        try:
            if int(self._board.read(f"done/{step}") or 0) < self._world_size:
                return None
            return self._failed.get(step) or self._board.read(f"failure/{step}")
        except (OSError, RuntimeError):
            return None
