"""The random state that an epoch's order was drawn from, of loaders that tell nobody their order in advance.

Torch draws at two moments: when the loader is iterated, and when its first batch is asked for. Between the two somebody
else may draw, such as a second loader that is iterated beside it. So both are kept.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from worker_hooks.training.data import loader_kinds
from worker_hooks.training.state import random_state


class EpochStart:
    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._opened: random_state.State | None = None
        self._first: random_state.State | None = None
        self._generators: dict[str, Any] = {}

    def opening(self) -> None:
        """Right before a new epoch is iterated."""
        self._opened, self._first = random_state.capture(), None
        self._generators = loader_kinds.capture_generators(self._loader)

    def first_batch(self) -> None:
        """Right before the first batch of the epoch is asked for, by whichever attempt."""
        self._first = random_state.capture()

    def record(self) -> dict[str, Any]:
        return {"epoch_random": self._opened, "first_random": self._first, "epoch_generators": self._generators}

    def iterate_again(self, position: Mapping[str, Any]) -> Iterator[Any]:
        """The epoch of a recorded position from its beginning, in the same order."""
        self._opened, self._first = position["epoch_random"], position.get("first_random")
        self._generators = position.get("epoch_generators", {})
        if self._opened is not None:
            random_state.restore(self._opened)
        loader_kinds.restore_generators(self._loader, self._generators)
        iterator: Iterator[Any] = iter(self._loader)
        if self._first is not None:
            random_state.restore(self._first)
        return iterator
