"""The feeds of all tracked loaders together, and how many batches make an update."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from worker_hooks.training.data.feed import Feed
from worker_hooks.training.sabotage import Sabotage


class Feeds:
    def __init__(self, loaders: Mapping[str, Any], sabotage: Sabotage) -> None:
        self.by_name = {name: Feed(loader, sabotage) for name, loader in loaders.items()}
        self._delivered = 0  # by the first, since the last update
        self._updates: Counter[int] = Counter()  # by the batches that they took, since an update last changed its size
        self._steady = True

    def take_up(self, data: Mapping[str, Any], *, step: int, accumulation: int) -> None:
        """What the attempts before said of their updates, in the manifest's `data`; older ones said less.

        `accumulation` batches are asked for from `step` on.
        """
        before = int(data.get("accumulation") or 1)
        asked_before = data.get("accumulation_now", before)
        first = self.first
        moved = accumulation != asked_before or (first is not None and first.moved)
        same = [feed.updates_of(before, accumulation if moved else before, step) for feed in self.by_name.values()]
        if all(same[:1]):
            self._updates = Counter({int(size): count for size, count in data.get("updates", {}).items()})
            self._steady = bool("updates" in data or data.get("steady"))

    @property
    def first(self) -> Feed | None:
        """The one that speaks for the run where only one can."""
        return next(iter(self.by_name.values()), None)

    def of(self, loader: Any) -> Feed | None:
        return next((feed for feed in self.by_name.values() if feed.loader is loader), None)

    def name_of(self, feed: Feed) -> str:
        return next(name for name, known in self.by_name.items() if known is feed)

    def set_epoch(self, epoch: int) -> None:
        for feed in self.by_name.values():
            feed.set_epoch(epoch)

    def delivered(self, feed: Feed) -> None:
        """The training loop has a batch: how many make an update is part of what the run is."""
        feed.delivered()
        self._delivered += feed is self.first

    def updated(self, accumulation: int) -> None:
        """An update is complete; `accumulation` batches made it if there is no feed to count them."""
        self._updates[self._delivered if self.by_name else accumulation] += 1
        self._delivered = 0

    def position(self, epoch: int, *, accumulation: int, asked: int) -> dict[str, Any]:
        """JSON: the manifest's `data`. `accumulation` stands for an update where none was seen yet."""
        positions = {
            name: feed.position(self._delivered if feed is self.first else 0) for name, feed in self.by_name.items()
        }
        return {
            **next(iter(positions.values()), {}),
            "epoch": epoch,
            "loaders": positions,
            "accumulation": self._usual or accumulation,
            "accumulation_now": accumulation,
            "accumulation_asked": asked,
            "updates": {str(size): count for size, count in self._updates.items()},
            "steady": self._steady and self._is_steady(),
        }

    @property
    def _usual(self) -> int:
        """Batches of most updates; 0 where none was seen or most took none. Of equals the larger one is whole."""
        return max(self._updates, key=lambda size: (self._updates[size], size), default=0)

    def _is_steady(self) -> bool:
        """Every update took as many batches, but for those at the turn of an epoch: then steps can be multiplied."""
        first, usual = self.first, self._usual
        if first is None or not self._updates:
            return first is not None
        odd = self._updates.total() - self._updates[usual]
        return (
            odd <= min(self._updates[usual] - 1, 2 * (first.account.turns + 1)) if usual > 1 else usual == 1 and not odd
        )
