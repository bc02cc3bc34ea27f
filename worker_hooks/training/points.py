"""Where the losses and metrics of this rank's updates go: telemetry, the record beside the checkpoint, the comparison
with the attempt before."""

from collections import deque
from collections.abc import Callable
from typing import Any

from worker_hooks.training.pending import PendingValues, Point
from worker_hooks.training.state.tracked import Tracked
from worker_hooks.training.telemetry import Telemetry

_RECENT_LOSSES = 4096


class Points:
    """One point per update. It is put without waiting for a device and arrives at a later step."""

    def __init__(self, tracked: Tracked, telemetry: Telemetry, rank: int) -> None:
        self._tracked = tracked
        self._telemetry = telemetry
        self._rank = rank
        self._pending = PendingValues()
        self._recent: deque[tuple[int, str]] = deque(maxlen=_RECENT_LOSSES)
        self._compare: Callable[[int, float], None] | None = None

    def compare_with(self, compare: Callable[[int, float], None]) -> None:
        """From now on each loss that arrives is handed to `compare(step, loss)`, which may raise."""
        self._compare = compare

    def put(self, step: int, loss: Any, metrics: dict[str, Any]) -> None:
        self._pending.put(step, {"loss": loss, "lr": self._learning_rate(), **metrics})

    def arrive(self, *, before: int | None = None) -> None:
        """Tell, keep and compare what has arrived of the steps below `before`; with None all, waiting for the device.

        Raises what the comparison raises.
        """
        for point in self._pending.take(before=before):
            loss = self._tell(point)
            if loss is None:
                continue
            self._recent.append((point.step, loss.hex()))
            if self._compare is not None:
                self._compare(point.step, loss)

    def tell(self, *, before: int) -> None:
        """After an error: what has arrived is told, nothing is compared any more."""
        for point in self._pending.take(before=before):
            self._tell(point)

    @property
    def recent(self) -> list[tuple[int, str]]:
        """(step, loss in hex) since the last save, the newest 4096."""
        return list(self._recent)

    def saved(self) -> None:
        """The recent losses are in a checkpoint."""
        self._recent.clear()

    @property
    def dropped(self) -> int:
        return self._pending.dropped

    def _learning_rate(self) -> Any:
        """Rank 0's first group speaks for all; a tensor is copied like a loss."""
        if self._rank != 0 or not self._tracked.optimizers:
            return None
        return next(iter(self._tracked.optimizers.values())).param_groups[0].get("lr")

    def _tell(self, point: Point) -> float | None:
        """Hand a point to telemetry; returns its loss."""
        for name, value in point.values.items():
            self._telemetry.metric(name, point.step, point.at, value)
        loss = point.values.get("loss")
        if loss is not None:
            self._telemetry.loss(point.step, loss)
        return loss
