"""Where a loader is: its epoch, batches of this rank, and samples of the whole job where their order is known."""

import copy
from typing import Any

from worker_hooks.training.data import loader_kinds
from worker_hooks.training.files.digests import value_digest


class Place:
    """`batches`: of this epoch, over all attempts. `base`, `base_batches`: samples and batches where this iteration
    began. `drawn`: for which epoch its order was drawn, if a sampler says so: a script may have told it another one."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.kind = loader_kinds.kind_of(loader)
        self.order = loader_kinds.order_of(loader)
        self.ranks = self.order.ranks if self.order is not None else loader_kinds.world_size()
        self.epoch = 0
        self.restart()

    def restart(self) -> None:
        """The beginning of an epoch."""
        self.batches = self.base = self.base_batches = 0
        self.drawn: int | None = None
        self.over = False

    def back(self, batches: int) -> "Place":
        """Where it was so many batches ago, at most where this iteration began."""
        found = copy.copy(self)
        found.batches = max(self.base_batches, self.batches - batches)
        return found

    def move_to(self, position: dict[str, Any], batches: int) -> None:
        """`batches` are those of the position, unless somebody wants it wrong."""
        self.epoch, self.over = position["epoch"], position.get("over", False)
        self.drawn = position.get("order_epoch")
        self.batches = self.base_batches = batches
        if self.order is not None:
            self.base = self._begin_at(self.reached_at(position), batches - position["batches"])

    def where(self, next_ids: str | None) -> dict[str, Any]:
        length = loader_kinds.length(self.loader)
        found: dict[str, Any] = {"epoch": self.epoch, "batches": self.batches, "epoch_length": length}
        if self.drawn is not None:
            found["order_epoch"] = self.drawn
        if self.order is not None:
            found |= {"consumed": self.consumed, "sampler_seed": self.order.seed}
        if next_ids is not None:
            found["next_ids_digest"] = next_ids
        return found

    def reached_at(self, position: dict[str, Any]) -> int:
        """`reached` at the save, from before samples were written for this kind too."""
        batches = int(position["batches"])
        if self.order is None:
            return batches
        if "consumed" in position:
            return int(position["consumed"])
        return min(batches * loader_kinds.batch_size(self.loader), self.order.rest(0)) * self.ranks

    def _begin_at(self, consumed: int, moved: int) -> int:
        assert self.order is not None
        size = loader_kinds.batch_size(self.loader)
        if self.kind == "distributed" and loader_kinds.batches_in(self.loader, self.order.rest(consumed)) > 0:
            loader_kinds.demand_whole_batches(consumed, size, self.ranks)
        return max(0, min(consumed + moved * size * self.ranks, max(consumed, self.order.size)))

    @property
    def consumed(self) -> int:
        """Samples of the whole job; the last batch of an epoch may be short."""
        assert self.order is not None
        since = (self.batches - self.base_batches) * loader_kinds.batch_size(self.loader)
        return self.base + min(since, self.order.rest(self.base)) * self.ranks

    @property
    def order_epoch(self) -> int:
        return self.epoch if self.drawn is None else self.drawn

    @property
    def global_batch(self) -> int | None:
        """Samples in one batch of all ranks, without accumulation; None where ranks may not see different samples."""
        return loader_kinds.batch_size(self.loader) * self.ranks if self.order is not None else None

    @property
    def reached(self) -> int:
        """In the ledger's unit."""
        return self.consumed if self.order is not None else self.batches

    @property
    def size(self) -> int | None:
        return self.order.size if self.order is not None else loader_kinds.length(self.loader)

    def is_over(self) -> bool:
        if self.order is not None:
            return self.over or loader_kinds.batches_in(self.loader, self.order.rest(self.base)) <= 0
        if loader_kinds.generators(self.loader):
            return self.over  # the end of an iteration draws from them too
        length = loader_kinds.length(self.loader)
        return self.over or (length is not None and self.batches >= length)

    def next_ids_digest(self) -> str | None:
        """Digest of the ids of this rank's next batch, where they can be known."""
        if self.order is not None:
            ids = self.order.ids(self.order_epoch, self.consumed, loader_kinds.batch_size(self.loader))
            return value_digest(ids, "sha256")
        found = loader_kinds.sequential_ids(self.loader, self.batches) if self.kind == "replay" else None
        return None if found is None else value_digest(found, "sha256")
