"""The feeds of all tracked loaders together, and how many batches make an update."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from worker_hooks.training.data.feed import Feed
from worker_hooks.training.sabotage import Sabotage


class Feeds:
    def __init__(self, loaders: Mapping[str, Any], sabotage: Sabotage) -> None:
        self.by_name = {name: Feed(loader, sabotage) for name, loader in loaders.items()}
        self._delivered = 0  # since the last update
        self._updates: Counter[int] = Counter()
        self._turns = 0  # epochs that this attempt entered after its first
        self._steady = True

    def take_up(self, data: Mapping[str, Any]) -> None:
        """What the attempt before said of its updates, in the manifest's `data`; older ones said nothing."""
        self._steady = bool(data.get("steady"))

    @property
    def first(self) -> Feed | None:
        """The one that speaks for the run where only one can."""
        return next(iter(self.by_name.values()), None)

    def of(self, loader: Any) -> Feed | None:
        return next((feed for feed in self.by_name.values() if feed.loader is loader), None)

    def name_of(self, feed: Feed) -> str:
        return next(name for name, known in self.by_name.items() if known is feed)

    def set_epoch(self, epoch: int) -> None:
        self._turns += 1
        for feed in self.by_name.values():
            feed.set_epoch(epoch)

    def delivered(self, feed: Feed) -> None:
        """The training loop has a batch: how many make an update is part of what the run is."""
        feed.delivered()
        self._delivered += 1

    def updated(self, accumulation: int) -> None:
        """An update is complete; `accumulation` batches made it if none came from a feed."""
        self._updates[self._delivered or accumulation] += 1
        self._delivered = 0

    def position(self, epoch: int, *, accumulation: int, asked: int) -> dict[str, Any]:
        """JSON: the manifest's `data`. `accumulation` stands for an update where none was seen yet."""
        positions = {name: feed.position() for name, feed in self.by_name.items()}
        return {
            **next(iter(positions.values()), {}),
            "epoch": epoch,
            "loaders": positions,
            "accumulation": next(iter(self._updates.most_common(1)), (accumulation,))[0],
            "accumulation_asked": asked,
            "steady": self._steady and self._is_steady(),
        }

    def _is_steady(self) -> bool:
        """Every update took as many batches, but for those at the turn of an epoch: then steps can be multiplied."""
        if len(self.by_name) != 1:
            return False
        usual = max(self._updates.values(), default=0)
        odd = self._updates.total() - usual
        return odd <= min(usual - 1, 2 * self._turns) if max(self._updates, default=1) > 1 else odd == 0
